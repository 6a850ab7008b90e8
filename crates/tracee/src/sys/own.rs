//! Calls about this very process: its memory, limits, clocks, and barriers between its threads.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use super::check;
use super::fd::owned;

/// A memfd; marked as executable where the kernel has a flag for that.
pub(crate) fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    const MFD_EXEC: u32 = 0x10;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let make = |flags: u32| {
        // SAFETY: the name is live and ends with a zero; a new descriptor.
        unsafe { owned(libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags)) }
    };
    // Kernels before 6.3 do not know the flag.
    make(flags | MFD_EXEC).or_else(|_| make(flags))
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

/// Has forked children find zeros there.
pub(crate) fn wipe_on_fork(addr: u64, len: u64) -> io::Result<()> {
    // SAFETY: nothing changes in this process, and of private memory without a file alone the kernel takes it.
    let done = unsafe { libc::madvise(addr as *mut _, len as usize, libc::MADV_WIPEONFORK) };
    check(i64::from(done)).map(drop)
}

/// The calling thread's niceness, from -20, the highest priority, to 19.
pub(crate) fn niceness() -> Option<i32> {
    // SAFETY: plain numbers. The system call returns 20 less the niceness; the C function cannot tell -1 from an error.
    let value = unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) };
    i32::try_from(value).ok().filter(|value| *value > 0).map(|value| 20 - value)
}

/// Sets it.
pub(crate) fn set_niceness(niceness: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, niceness) }).map(drop)
}

fn membarrier(command: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }).map(drop)
}

/// Issues MEMBARRIER_CMD_GLOBAL.
pub(crate) fn global_barrier() -> io::Result<()> {
    membarrier(1)
}

/// Makes every CPU that runs a thread of this process serialise before it returns.
pub(crate) fn sync_cores() -> io::Result<()> {
    const REGISTER: i32 = 1 << 6;
    const SYNC_CORE: i32 = 1 << 5;
    membarrier(SYNC_CORE).or_else(|_| membarrier(REGISTER).and_then(|()| membarrier(SYNC_CORE)))
}

/// A resource of this process that is limited.
#[derive(Clone, Copy)]
pub(crate) enum Limited {
    Descriptors = libc::RLIMIT_NOFILE as isize,
    FileSizes = libc::RLIMIT_FSIZE as isize,
}

/// The limit of a resource.
pub(crate) fn limit(of: Limited) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is live and of the type that is filled.
    check(i64::from(unsafe { libc::getrlimit(of as _, &raw mut limit) })).map(|_| limit)
}

/// Sets it.
pub(crate) fn set_limit(of: Limited, limit: libc::rlimit) -> io::Result<()> {
    // SAFETY: `limit` is live.
    check(i64::from(unsafe { libc::setrlimit(of as _, &raw const limit) })).map(drop)
}

/// Hour, minute and second of the day, in local time.
pub(crate) fn local_time() -> (i32, i32, i32) {
    // SAFETY: `tm` is plain integers and a pointer that is never followed; all-zero is a value of it.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: a null pointer is allowed: the time is then only returned.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: both are live; on failure `tm` keeps its zeros.
    unsafe { libc::localtime_r(&raw const now, &raw mut tm) };
    (tm.tm_hour, tm.tm_min, tm.tm_sec)
}

fn clock(clock: libc::clockid_t) -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is live; the clock is one of the two below, which always exist.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CLOCK_BOOTTIME.
pub(crate) fn boot_time() -> std::time::Duration {
    clock(libc::CLOCK_BOOTTIME)
}

/// CLOCK_MONOTONIC.
pub(crate) fn monotonic() -> std::time::Duration {
    clock(libc::CLOCK_MONOTONIC)
}

/// CPU time of the calling thread.
pub(crate) fn thread_time() -> std::time::Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The calling thread's number.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::gettid() }.cast_unsigned()
}
