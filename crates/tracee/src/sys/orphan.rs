//! A process of ours that is no descendant of ours, to try what only strangers are forbidden.
//!
//! In: nothing. Out: a pid. The process waits in a system call, and ends when the value is dropped or its maker dies.
//! Does not: execute a program, or use more than system calls after its fork.

use std::io::{self, Read as _, Write as _};

use super::check;

/// The process.
#[derive(Debug)]
pub(crate) struct Orphan {
    pid: u32,
    /// Its end is the process's end.
    _hold: io::PipeWriter,
}

impl Orphan {
    /// Starts it: a child that leaves a child of its own behind. The system gives that one another parent.
    pub(crate) fn start() -> io::Result<Self> {
        let (mut told, tell) = io::pipe()?;
        let (held, hold) = io::pipe()?;
        // SAFETY: what runs in the new process makes system calls only: it takes no lock and does not allocate.
        match check(i64::from(unsafe { libc::fork() }))? {
            0 => second(tell, held, hold),
            child => {
                drop((tell, held));
                let mut pid = [0; 4];
                let read = told.read_exact(&mut pid);
                // SAFETY: it is our child, and ends by itself; its status is not asked for.
                unsafe { libc::waitpid(child as libc::pid_t, std::ptr::null_mut(), 0) };
                read?;
                Ok(Self { pid: u32::from_ne_bytes(pid), _hold: hold })
            }
        }
    }
    /// Its pid.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }
}

/// The child: makes the second process and ends. The second one waits for the end of `hold`.
fn second(mut tell: io::PipeWriter, mut held: io::PipeReader, hold: io::PipeWriter) -> ! {
    // Otherwise it would wait for itself.
    drop(hold);
    // SAFETY: as above.
    if unsafe { libc::fork() } == 0 {
        // SAFETY: takes nothing and cannot fail.
        let pid = unsafe { libc::getpid() };
        // The reader sees a pipe that ends early, and reports that.
        drop(tell.write_all(&pid.to_ne_bytes()));
        drop(tell);
        drop(held.read(&mut [0]));
    }
    // SAFETY: ends the process at once, without running anything of the process that it was copied from.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::Orphan;
    use crate::status::ThreadStatus;
    use crate::sys::fd::{ends_within, pidfd_open};
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    #[test]
    fn it_has_another_parent_and_ends_with_its_value() {
        let orphan = Orphan::start().expect("forks");
        let pidfd = pidfd_open(orphan.pid()).expect("it runs");
        let parent = || {
            let status = std::fs::read(format!("/proc/{}/status", orphan.pid())).expect("it runs");
            ThreadStatus::parse(&status).ppid
        };
        assert_ne!(parent(), std::process::id());
        assert!(!ends_within(pidfd.as_fd(), Duration::from_millis(50)), "it waits");
        drop(orphan);
        assert!(ends_within(pidfd.as_fd(), Duration::from_secs(10)), "it ends");
    }
}
