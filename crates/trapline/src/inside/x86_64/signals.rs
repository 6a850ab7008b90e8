//! Handlers of signals that are sent: called through signal wrappers, so they never see a copy's address.
//!
//! In: the present signal actions, at each batch; libc's `sigaction`, probed, for later ones. Out: wrappers
//! in place of the handlers (`trapline_runtime::x86_64::signal_wrappers`). Libc shows the program its own
//! handlers. Does not: notice raw system calls until the next batch.
//!
//! The function is replaced only if libc is glibc: its own does just what is done here
//! (sysdeps/unix/sysv/linux/libc_sigaction.c). Other C libraries keep records of their own. `signal` and all
//! that set handlers lead there. A consumer that sets a handler is not seen.
#![allow(unsafe_code, reason = "a function of libc's is done in its place")]

use trapline_runtime::x86_64::{signal_wrappers, sys};

/// Whether libc is one with a known `sigaction`.
pub(in crate::inside) fn is_known() -> bool {
    // SAFETY: it only looks a name up.
    unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_version".as_ptr()).is_null() }
}

/// Address of the function that replaces libc's `sigaction`.
pub(in crate::inside) fn instead() -> u64 {
    sigaction as *const () as u64
}

/// Puts wrappers in place of present handlers.
pub(in crate::inside) fn put() {
    signal_wrappers::put_all();
}

/// As glibc's: returns 0, or −1 with errno.
unsafe extern "C" fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    // SAFETY: the pointers are the program's, null or to its own structures. glibc names a restorer, of which
    // this is a copy.
    let result = unsafe {
        let new = new.as_ref().map(|new| sys::SignalAction {
            handler: new.sa_sigaction as u64,
            flags: u64::from(new.sa_flags.cast_unsigned()),
            restorer: 0,
            mask: word(&raw const new.sa_mask).read(),
        });
        if is_settable(signal) { signal_wrappers::change(signal, new.as_ref()) } else { Err(libc::EINVAL) }
    };
    match result {
        Ok(was) => {
            // SAFETY: as above.
            if let Some(old) = unsafe { old.as_mut() } {
                old.sa_sigaction = was.handler as usize;
                old.sa_flags = (was.flags as u32).cast_signed();
                // SAFETY: the set is larger than the first 64 signals; the rest stays, as with glibc.
                unsafe { word(&raw const old.sa_mask).cast_mut().write(was.mask) };
                // SAFETY: an address or null, which are both valid there.
                old.sa_restorer = unsafe {
                    std::mem::transmute::<*const (), Option<extern "C" fn()>>(was.restorer as *const ())
                };
            }
            0
        }
        Err(errno) => {
            // SAFETY: errno is this thread's own word.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// All signals but the two that glibc keeps for itself.
fn is_settable(signal: i32) -> bool {
    (1..=64).contains(&signal) && ![32, 33].contains(&signal)
}

/// The first word of a set, which is all that the kernel uses.
const fn word(set: *const libc::sigset_t) -> *const u64 {
    set.cast()
}
