//! Calls that map code or set signal handlers, probed by the engine itself. [`notice`](super) argues which
//! thread waits for which.
//!
//! In: hits of the loader's notice, of `sigaction`, `mmap`, `mprotect` and `mremap`. Out: requests to the
//! thread that looks; program's handlers behind signal wrappers (`signals`). A handler may not do that
//! (RUN-1). So it moves the instruction pointer to a function here that runs instead of the probed one: the
//! hit is over by then. The functions of libc that are replaced only make their system call, and so do the
//! ones here. Does not: look.
#![allow(unsafe_code, reason = "functions of libc are done in their place")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::thread;
use crate::inside::arch::{LIBCS, LISTENS_BY_TRAPS, LOADERS, signals};
use crate::inside::mapped_files::known_at;
use crate::inside::{Consumer, Verdict};

/// Mappings of data matter too.
static DATA: AtomicBool = AtomicBool::new(false);

/// Sets whether to ask for a look when data is mapped.
pub(super) fn read_data(wanted: bool) {
    DATA.store(wanted, Relaxed);
}

/// A function to be probed, and what runs instead.
pub(in crate::inside) struct Call {
    pub(in crate::inside) function: &'static str,
    /// Files in which it may be, as short names.
    pub(in crate::inside) files: &'static [&'static str],
    instead: fn() -> u64,
    /// Whether the function does what its replacement does.
    is_known: fn() -> bool,
    pub(in crate::inside) reports: Of,
}

/// What a call reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::inside) enum Of {
    /// A change of the loader's list of libraries.
    Libraries,
    Handlers,
    Mappings,
}

const GLIBC: &[&str] = &["libc"];

/// The first two are probed even where there are records; the others only if there are none.
static CALLS: [Call; 5] = [
    Call {
        function: "_dl_debug_state",
        files: LOADERS,
        instead: || loaded as *const () as u64,
        is_known: || true,
        reports: Of::Libraries,
    },
    Call {
        function: "sigaction",
        files: GLIBC,
        instead: signals::instead,
        is_known: signals::is_known,
        reports: Of::Handlers,
    },
    Call {
        function: "mmap",
        files: LIBCS,
        instead: || mmap as *const () as u64,
        is_known: || true,
        reports: Of::Mappings,
    },
    Call {
        function: "mprotect",
        files: LIBCS,
        instead: || mprotect as *const () as u64,
        is_known: || true,
        reports: Of::Mappings,
    },
    Call {
        function: "mremap",
        files: LIBCS,
        instead: || mremap as *const () as u64,
        is_known: || true,
        reports: Of::Mappings,
    },
];

/// The calls to be probed; `all`: there are no records.
pub(in crate::inside) fn wanted(all: bool) -> impl Iterator<Item = &'static Call> {
    let calls = if all { &CALLS[..] } else { &CALLS[..2] };
    let is_read = |call: &&Call| !LISTENS_BY_TRAPS || call.reports == Of::Libraries;
    calls.iter().filter(is_read).filter(|call| (call.is_known)())
}

impl Call {
    pub(in crate::inside) fn consumer(&self) -> Consumer {
        let instead = (self.instead)();
        let handler = move |hit: &mut crate::inside::Hit<'_>| {
            // SAFETY: the function at that address has the signature of the probed one, and does what that
            // does.
            unsafe { hit.regs_mut() }.set_ip(instead);
            Verdict::Continue
        };
        Consumer::entry(handler).moves_ip()
    }
}

/// Replaces `_dl_debug_state`, an empty function that the loader calls before and after each change of its
/// list.
extern "C" fn loaded() {
    thread::ask_and_wait();
}

/// As libc's: returns the kernel's answer, or −1 with errno.
unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    prot: i32,
    flags: i32,
    fd: i32,
    off: i64,
) -> *mut c_void {
    // SAFETY: the arguments are the program's own, passed on to the same system call.
    let result = unsafe {
        libc::syscall(libc::SYS_mmap, at, len, i64::from(prot), i64::from(flags), i64::from(fd), off)
    };
    let is_of_interest = prot & libc::PROT_EXEC != 0 || prot & libc::PROT_WRITE != 0 && DATA.load(Relaxed);
    if result != -1 && is_of_interest && flags & libc::MAP_ANONYMOUS == 0 {
        thread::ask();
    }
    result as *mut c_void
}

unsafe extern "C" fn mprotect(at: *mut c_void, len: usize, prot: i32) -> i32 {
    // SAFETY: the arguments are the program's own, passed on to the same system call.
    let result = unsafe { libc::syscall(libc::SYS_mprotect, at, len, i64::from(prot)) };
    if result == 0 && prot & libc::PROT_EXEC != 0 {
        thread::ask();
    }
    result as i32
}

/// The fifth argument matters with MREMAP_FIXED only, and is passed on as it is.
unsafe extern "C" fn mremap(
    at: *mut c_void,
    old: usize,
    len: usize,
    flags: i32,
    to: *mut c_void,
) -> *mut c_void {
    let is_code = known_at(at as u64).is_some();
    // SAFETY: the arguments are the program's own, passed on to the same system call.
    let result = unsafe { libc::syscall(libc::SYS_mremap, at, old, len, i64::from(flags), to) };
    if result != -1 && is_code {
        thread::ask();
    }
    result as *mut c_void
}
