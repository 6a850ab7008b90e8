//! Calls that change this very process.

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use super::check;

/// A memfd; marked as executable where the kernel has a flag for that.
pub(crate) fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    const MFD_EXEC: u32 = 0x10;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let make = |flags: u32| {
        // SAFETY: the name is live and ends with a zero.
        check(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) })
    };
    // Kernels before 6.3 do not know the flag.
    let fd = make(flags | MFD_EXEC).or_else(|_| make(flags))?;
    // SAFETY: the call succeeded and returned a new descriptor that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Maps memory at an address where nothing is mapped.
pub(crate) fn mmap(addr: u64, len: u64, prot: i32, flags: i32, fd: i32, off: u64) -> io::Result<()> {
    let flags = flags | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: with MAP_FIXED_NOREPLACE nothing that exists is touched.
    let at = unsafe { libc::mmap(addr as *mut _, len as usize, prot, flags, fd, off as i64) };
    match at {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        at if at as u64 != addr => {
            // A kernel that does not know the flag takes the address as a hint.
            // SAFETY: the mapping was made by the call above.
            unsafe { libc::munmap(at, len as usize) };
            Err(io::ErrorKind::AlreadyExists.into())
        }
        _ => Ok(()),
    }
}

/// # Safety
/// No code may use the range any more.
pub(crate) unsafe fn munmap(addr: u64, len: u64) -> io::Result<()> {
    // SAFETY: the caller guarantees that the range is unused.
    check(i64::from(unsafe { libc::munmap(addr as *mut _, len as usize) })).map(drop)
}

/// Makes every CPU that runs a thread of this process serialise before it returns.
pub(crate) fn sync_cores() -> io::Result<()> {
    const REGISTER: i32 = 1 << 6;
    const SYNC_CORE: i32 = 1 << 5;
    // SAFETY: plain numbers.
    let call = |command: i32| check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) });
    call(SYNC_CORE).or_else(|_| call(REGISTER).and_then(|_| call(SYNC_CORE))).map(drop)
}
