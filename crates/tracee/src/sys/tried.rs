//! Calls that are only made to see whether the kernel permits them.
//!
//! In: nothing. Out: the kernel's answer. Does not: leave anything behind.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::check;
use super::fd::owned;

/// Opens a group of fanotify, which reports files of all processes if it may (`all`).
pub(crate) fn fanotify(all: bool) -> io::Result<OwnedFd> {
    const CLOEXEC: u32 = 1;
    /// Events that carry a descriptor of the file; needs CAP_SYS_ADMIN.
    const WITH_FILES: u32 = 0;
    /// Events that carry numbers of the file; every user may have them since Linux 5.13.
    const WITH_NUMBERS: u32 = 0x200;
    let flags = CLOEXEC | if all { WITH_FILES } else { WITH_NUMBERS };
    // SAFETY: plain numbers; a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_fanotify_init, flags, libc::O_RDONLY | libc::O_CLOEXEC)) }
}

/// Asks a group to report when a file is opened to be executed.
pub(crate) fn watch_executions(group: &OwnedFd, file: &CStr) -> io::Result<()> {
    const ADD: u32 = 1;
    const OPEN_EXEC: u64 = 0x1000;
    let (fd, folder) = (group.as_raw_fd(), libc::AT_FDCWD);
    // SAFETY: the path is live and ends with a zero; the rest is numbers.
    check(unsafe { libc::syscall(libc::SYS_fanotify_mark, fd, ADD, OPEN_EXEC, folder, file.as_ptr()) })
        .map(drop)
}

/// Whether the kernel knows restartable sequences. The call is wrong on purpose, so nothing is registered.
pub(crate) fn knows_rseq() -> bool {
    // SAFETY: the kernel refuses a length of zero before it looks at the address.
    let answer = check(unsafe { libc::syscall(libc::SYS_rseq, 0, 0, 1 << 30, 0) });
    answer.is_err_and(|error| error.raw_os_error() != Some(libc::ENOSYS))
}

/// Maps a page of a file as shared code, and unmaps it.
pub(crate) fn map_code(file: &OwnedFd) -> io::Result<()> {
    const PAGE: usize = 4096;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_SHARED);
    // SAFETY: without MAP_FIXED the kernel chooses an address at which nothing is mapped.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, prot, flags, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping was made by the call above, and nothing refers to it.
    check(i64::from(unsafe { libc::munmap(at, PAGE) })).map(drop)
}
