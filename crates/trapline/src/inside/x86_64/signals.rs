//! The program's handlers of signals that are sent: called so that they never see a copy's address.
//!
//! In: the dispositions that there are, at each batch; libc's `sigaction`, probed, for those that come. Out: stand-ins in their place
//! (`trapline_runtime::x86_64::stand_ins`). The program is told of its own handlers, by libc. Does not: know of raw system calls until the next batch.
//!
//! The function is replaced only where libc is glibc, whose own does nothing but what is done here (sysdeps/unix/sysv/linux/libc_sigaction.c); others keep accounts of
//! their own. `signal` and all that set handlers lead there. A consumer that sets a handler is not seen.
#![allow(unsafe_code, reason = "a function of libc's is done in its place")]

use trapline_runtime::x86_64::{stand_ins, sys};

/// Whether libc is the one whose function is known.
pub(in crate::inside) fn is_known() -> bool {
    // SAFETY: a name is looked up.
    unsafe { !libc::dlsym(libc::RTLD_DEFAULT, c"gnu_get_libc_version".as_ptr()).is_null() }
}

/// What takes the place of libc's `sigaction`.
pub(in crate::inside) fn instead() -> u64 {
    sigaction as *const () as u64
}

/// Handlers that there are get stand-ins.
pub(in crate::inside) fn put() {
    stand_ins::put_all();
}

/// As glibc's: 0, or −1 and errno.
unsafe extern "C" fn sigaction(signal: i32, new: *const libc::sigaction, old: *mut libc::sigaction) -> i32 {
    // SAFETY: the caller's pointers, null or to its own. glibc names a restorer, of which ours is a copy.
    let result = unsafe {
        let new = new.as_ref().map(|new| sys::Action {
            handler: new.sa_sigaction as u64,
            flags: u64::from(new.sa_flags.cast_unsigned()),
            restorer: 0,
            mask: word(&raw const new.sa_mask).read(),
        });
        if is_settable(signal) { stand_ins::change(signal, new.as_ref()) } else { Err(libc::EINVAL) }
    };
    match result {
        Ok(was) => {
            // SAFETY: as above.
            if let Some(old) = unsafe { old.as_mut() } {
                old.sa_sigaction = was.handler as usize;
                old.sa_flags = (was.flags as u32).cast_signed();
                // SAFETY: the first 64 signals of a larger set, as glibc leaves them.
                unsafe { word(&raw const old.sa_mask).cast_mut().write(was.mask) };
                // SAFETY: an address or null, which is what it may hold.
                old.sa_restorer = unsafe {
                    std::mem::transmute::<*const (), Option<extern "C" fn()>>(was.restorer as *const ())
                };
            }
            0
        }
        Err(errno) => {
            // SAFETY: this thread's own word.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// All but the two that glibc keeps for itself.
fn is_settable(signal: i32) -> bool {
    (1..=64).contains(&signal) && ![32, 33].contains(&signal)
}

/// The word of a set that the kernel knows.
const fn word(set: *const libc::sigset_t) -> *const u64 {
    set.cast()
}
