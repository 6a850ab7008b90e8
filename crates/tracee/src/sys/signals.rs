//! Waiting for signals: they are blocked, and read from a signalfd. And the one that ends this process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::fd::owned;

/// The signals that end a session.
pub(crate) const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signal mask before we blocked anything.
static ORIGINAL: OnceLock<libc::sigset_t> = OnceLock::new();

/// Blocks these signals in the calling thread and in those it starts later, and opens a descriptor that
/// reports them. A write beyond the limit of file sizes fails from then on. Without that, SIGXFSZ would end
/// us while a target is patched.
pub(crate) fn open(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: sigset_t is plain integers; all-zero is a value of it, and sigemptyset makes it empty anyway.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for &signal in signals {
        // SAFETY: `set` is live.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    let (mut all, mut old) = (set, set);
    // SAFETY: `all` is live.
    unsafe { libc::sigaddset(&raw mut all, libc::SIGXFSZ) };
    // SAFETY: both sets are live.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut old) };
    if blocked != 0 {
        return Err(io::Error::from_raw_os_error(blocked));
    }
    ORIGINAL.get_or_init(|| old);
    // SAFETY: `set` is live; a new descriptor.
    unsafe { owned(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into()) }
}

/// Blocks the terminal's stop (Ctrl-Z) in the calling thread and in those it starts later.
pub(crate) fn block_stop() {
    // SAFETY: sigset_t is plain integers; all-zero is a value of it, and sigemptyset makes it empty anyway.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live; a null pointer means that the old mask is not needed.
    unsafe {
        libc::sigaddset(&raw mut set, libc::SIGTSTP);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Gives the calling thread the mask from before [`open`]. Fit for a child between fork and exec: it
/// allocates nothing and takes no lock.
pub(crate) fn unblock() {
    if let Some(mask) = ORIGINAL.get() {
        // SAFETY: `mask` is live; a null pointer means that the old mask is not needed.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *mask, std::ptr::null_mut()) };
    }
}

/// Whether a signal that ends a session is pending. If so, a wait that began at `since` must not go on. Short waits go
/// on nevertheless: they end by themselves before a user notices.
pub(crate) fn asked_to_end(since: Instant) -> bool {
    const SHORT: Duration = Duration::from_millis(200);
    since.elapsed() >= SHORT && is_end_pending()
}

/// Whether a signal that ends a session is pending ([`open`] has blocked it).
pub(crate) fn is_end_pending() -> bool {
    if ORIGINAL.get().is_none() {
        return false;
    }
    // SAFETY: sigset_t is plain integers; all-zero is a value of it.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is live.
    let known = unsafe { libc::sigpending(&raw mut set) } == 0;
    // SAFETY: `set` is live and was filled.
    let waits = |signal| unsafe { libc::sigismember(&raw const set, signal) } == 1;
    known && ENDING.into_iter().any(waits)
}

/// The next signal; 0 when none came. Waits at most `at_most`, or until one of the others is readable.
pub(crate) fn next(fd: &OwnedFd, others: &[i32], at_most: Duration) -> io::Result<i32> {
    let millis = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = [fd.as_raw_fd()].iter().chain(others).copied().map(poll).collect();
    // SAFETY: the array is live and as long as stated.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    if ready <= 0 || polled[0].revents == 0 {
        return Ok(0);
    }
    // SAFETY: signalfd_siginfo is plain integers; all-zero is a value of it.
    let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is live and of the length given.
    let read = unsafe { libc::read(fd.as_raw_fd(), (&raw mut info).cast(), size_of_val(&info)) };
    Ok(if read == size_of_val(&info) as isize { info.ssi_signo as i32 } else { 0 })
}

/// Ends this process by SIGKILL.
pub(super) fn die() -> ! {
    // SAFETY: kill and pause take plain numbers; SIGKILL to ourselves ends the process here.
    unsafe {
        libc::kill(libc::getpid(), libc::SIGKILL);
        loop {
            libc::pause();
        }
    }
}
