//! waitid, restricted to what this thread traces: other threads' children are only looked at once they have
//! ended.

use std::io;
use std::time::{Duration, Instant};

/// A stop or an end that waits to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// It is about to receive a signal.
    Signal { tid: u32, signal: i32 },
    /// It is at a system call's entry or exit.
    Call { tid: u32 },
    /// A ptrace event; `signal` distinguishes a group-stop from an interrupt.
    Event { tid: u32, event: i32, signal: i32 },
    /// It has ended, with its wait status.
    Exit { tid: u32, status: i32 },
}

impl Stop {
    pub(crate) const fn tid(self) -> u32 {
        match self {
            Self::Signal { tid, .. }
            | Self::Call { tid }
            | Self::Event { tid, .. }
            | Self::Exit { tid, .. } => tid,
        }
    }
}

const WHAT: i32 = libc::WEXITED | libc::WSTOPPED | libc::__WALL;

fn wait(kind: libc::idtype_t, id: u32, flags: i32) -> io::Result<Option<Stop>> {
    loop {
        // SAFETY: siginfo_t is plain integers; all-zero is a value of it.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is live and of the type that waitid fills.
        if unsafe { libc::waitid(kind, id, &raw mut info, WHAT | flags) } == 0 {
            // SAFETY: waitid succeeded, so the fields of a child's record are the active ones (zero if none).
            let (tid, status) = unsafe { (info.si_pid(), info.si_status()) };
            return Ok((tid != 0).then(|| decode(tid as u32, info.si_code, status)));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

const fn decode(tid: u32, code: i32, status: i32) -> Stop {
    match code {
        libc::CLD_EXITED => Stop::Exit { tid, status: (status & 0xff) << 8 },
        libc::CLD_KILLED => Stop::Exit { tid, status: status & 0x7f },
        libc::CLD_DUMPED => Stop::Exit { tid, status: (status & 0x7f) | 0x80 },
        _ if status >> 8 != 0 => Stop::Event { tid, event: status >> 8, signal: status & 0x7f },
        _ if status & 0x80 != 0 => Stop::Call { tid },
        _ => Stop::Signal { tid, signal: status & 0x7f },
    }
}

/// Any stop that waits. It stays waiting.
pub(crate) fn peek_any() -> io::Result<Option<Stop>> {
    wait(libc::P_ALL, 0, libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD)
}
/// A thread's stop, if one waits. It stays waiting.
pub(crate) fn peek(tid: u32) -> io::Result<Option<Stop>> {
    wait(libc::P_PID, tid, libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD)
}
/// Reaps a thread's stop, so that it is not seen again while the thread is held.
pub(crate) fn take(tid: u32) -> io::Result<Option<Stop>> {
    wait(libc::P_PID, tid, libc::WNOHANG | libc::__WNOTHREAD)
}
/// Reaps a thread that has ended, whichever of our threads traces it; returns whether it had ended. Takes no
/// stop.
pub(crate) fn reap(tid: u32) -> bool {
    // SAFETY: siginfo_t is plain integers; all-zero is a value of it.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let what = libc::WEXITED | libc::__WALL | libc::WNOHANG;
    // SAFETY: `info` is live and of the type that waitid fills.
    let done = unsafe { libc::waitid(libc::P_PID, tid, &raw mut info, what) } == 0;
    // SAFETY: waitid succeeded, so the fields of a child's record are the active ones (zero if none).
    done && unsafe { info.si_pid() } != 0
}
/// Whether a child of ours has ended, whichever of our threads started or traces it. Takes no stop from the
/// tracer.
pub(crate) fn ended(pid: u32) -> io::Result<bool> {
    let stop = wait(libc::P_PID, pid, libc::WNOHANG | libc::WNOWAIT)?;
    Ok(matches!(stop, Some(Stop::Exit { .. })))
}
/// Waits a little: at first only by yielding the CPU, after a millisecond by short sleeps.
pub(crate) fn pause(passed: Duration) {
    if passed < Duration::from_millis(1) {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(100));
    }
}
/// Repeats a step until it returns true or `at_most` is over; returns whether it did. The step is made at
/// least once, and at least every millisecond.
pub(crate) fn within<E>(at_most: Duration, mut step: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let start = Instant::now();
    loop {
        if step()? {
            return Ok(true);
        }
        let passed = start.elapsed();
        if passed >= at_most {
            return Ok(false);
        }
        pause(passed);
    }
}
