//! Descriptors across processes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use super::check;

/// The descriptor that a call has returned.
///
/// # Safety
/// The call returned −1, or a new descriptor that has no other owner.
pub(super) unsafe fn owned(result: i64) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the call succeeded; the caller promises the rest.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(crate) fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0)) }
}
/// A pidfd for one thread (Linux 6.9).
pub(crate) fn pidfd_of_thread(tid: u32) -> io::Result<OwnedFd> {
    const PIDFD_THREAD: i32 = libc::O_EXCL;
    // SAFETY: plain numbers; a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_pidfd_open, tid, PIDFD_THREAD)) }
}
/// Copies a descriptor of another process.
pub(crate) fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers, and `pidfd` is open while borrowed; a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0)) }
}

/// A process' wait status after its parent has reaped it (Linux 6.15); `None` where the kernel does not give
/// it.
pub(crate) fn exit_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    /// `struct pidfd_info` in its first form: mask, group, and twelve numbers of which the last is the
    /// status.
    #[repr(C)]
    struct Info {
        mask: u64,
        group: u64,
        numbers: [i32; 12],
    }
    const GET_INFO: libc::c_ulong = 0xC040_FF0B;
    const EXIT: u64 = 1 << 3;
    let mut info = Info { mask: EXIT, group: 0, numbers: [0; 12] };
    // SAFETY: `info` is live and has the 64 bytes that the request's number states.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO as _, &raw mut info) };
    (result == 0 && info.mask & EXIT != 0).then_some(info.numbers[11])
}

/// Waits until a process has ended with all its threads, for at most `at_most`; returns whether it has.
pub(crate) fn ends_within(pidfd: BorrowedFd<'_>, at_most: Duration) -> bool {
    let start = Instant::now();
    loop {
        let left = at_most.saturating_sub(start.elapsed());
        let millis = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut polled = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `polled` is one live entry.
        if unsafe { libc::poll(&raw mut polled, 1, millis) } > 0 {
            return true;
        }
        // It may return early for a signal.
        if left.is_zero() {
            return false;
        }
    }
}

/// Whether two processes share their address space.
pub(crate) fn same_memory(a: u32, b: u32) -> io::Result<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: plain numbers.
    check(unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) }).map(|order| order == 0)
}

/// Whether a socket has a timeout for receiving (or sending); `None` when it is not a socket.
pub(crate) fn has_socket_timeout(socket: BorrowedFd<'_>, sending: bool) -> Option<bool> {
    let name = if sending { libc::SO_SNDTIMEO } else { libc::SO_RCVTIMEO };
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` and `len` are live, and `len` is the size of `value`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len)
    };
    (result == 0).then_some(value.tv_sec != 0 || value.tv_usec != 0)
}

/// Gives a range of a file's pages back to the system.
pub(crate) fn punch(file: BorrowedFd<'_>, off: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain numbers; the descriptor is open while borrowed.
    check(i64::from(unsafe { libc::fallocate(file.as_raw_fd(), mode, off as i64, len as i64) })).map(drop)
}

/// Allocates a range of a file's pages. Pages that did not exist are charged to us.
pub(crate) fn allocate(file: BorrowedFd<'_>, off: u64, len: u64) -> io::Result<()> {
    // SAFETY: plain numbers; the descriptor is open while borrowed.
    check(i64::from(unsafe { libc::fallocate(file.as_raw_fd(), 0, off as i64, len as i64) })).map(drop)
}

/// Fixes a memfd's size for good. If it is already sealed against shrinking, that is enough. More seals may
/// follow ([`seal_writes`]).
pub(crate) fn seal_size(file: BorrowedFd<'_>) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: plain numbers; the descriptor is open while borrowed.
    let added = check(i64::from(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }));
    // SAFETY: as above.
    let present = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if present >= 0 && present & libc::F_SEAL_SHRINK != 0 { Ok(()) } else { added.map(drop) }
}

/// Fixes a memfd's bytes for good; returns false while some process maps it shared and may write there. The
/// kernel counts these mappings under the lock that it takes to make one. So none is made, forked or split
/// off meanwhile, and none can be made afterwards.
pub(crate) fn seal_writes(file: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: plain numbers; the descriptor is open while borrowed.
    let added = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) };
    match check(i64::from(added)) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The next range of a file from `from` on that has memory behind it, as (begin, end). `None` if there is
/// none.
pub(crate) fn next_data(fd: BorrowedFd<'_>, from: u64) -> io::Result<Option<(u64, u64)>> {
    let seek = |from: u64, whence| {
        let from = i64::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: plain numbers.
        let at = unsafe { libc::lseek(fd.as_raw_fd(), from, whence) };
        u64::try_from(at).map_err(|_| io::Error::last_os_error())
    };
    match seek(from, libc::SEEK_DATA) {
        Ok(start) => Ok(Some((start, seek(start, libc::SEEK_HOLE)?))),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a memfd in our own process.
#[cfg(test)]
pub(crate) fn memfd(name: &std::ffi::CStr, sealing: bool) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | if sealing { libc::MFD_ALLOW_SEALING } else { 0 };
    // SAFETY: the name is live and ends with a zero; a new descriptor.
    unsafe { owned(libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags)) }
}

/// Keeps a descriptor that we were started with from what we launch. A number that is not open changes nothing.
pub fn withhold(number: i32) {
    // SAFETY: two numbers. An error says that there is nothing to keep.
    unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// Our effective user and group.
pub(crate) fn whoami() -> (u32, u32) {
    // SAFETY: these calls take nothing and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Makes an eventfd; reading and writing it never blocks.
pub(crate) fn event() -> io::Result<OwnedFd> {
    // SAFETY: plain numbers; a new descriptor.
    unsafe { owned(i64::from(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))) }
}

/// Makes the eventfd readable. Preserves the thread's errno, since this is called in the middle of other
/// code.
pub(crate) fn add_event(event: BorrowedFd<'_>) {
    let one = 1u64;
    // SAFETY: errno is the calling thread's own; `one` is live and has 8 bytes. If the counter is full the
    // write fails, but the eventfd is readable already.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(event.as_raw_fd(), (&raw const one).cast(), 8);
        *libc::__errno_location() = errno;
    }
}

/// Returns whether the eventfd was readable, and makes it unreadable.
pub(crate) fn take_event(event: BorrowedFd<'_>) -> bool {
    let mut count = 0u64;
    // SAFETY: `count` is live, of 8 bytes.
    unsafe { libc::read(event.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
}
