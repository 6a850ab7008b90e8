//! What keeps a thread from doing what the tracer waits for.
//!
//! Input: a thread. Output: whether it is frozen, and a sentence for the user: its state, the kernel function
//! that it waits in, and what to do. Does not: wait, or stop anything.

use std::fmt;

use crate::procfs;
use crate::status::{InCall, ThreadStatus};

/// What /proc shows of a thread that does not go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stuck {
    tid: u32,
    comm: String,
    state: char,
    /// The kernel function that it waits in; empty where the kernel does not show it.
    place: String,
    call: Option<u64>,
}

/// Kernel functions in which a thread that seems to sleep is frozen (cgroup v2): one that is about to take a signal runs.
const FROZEN: [&str; 2] = ["do_freezer_trap", "get_signal"];

/// Whether a thread that sleeps is frozen.
pub(crate) fn sleeps_frozen(pid: u32, tid: u32) -> bool {
    let place = procfs::text(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default();
    FROZEN.contains(&place.trim())
}

impl Stuck {
    /// Reads what /proc shows of a thread of a process.
    pub(crate) fn of(pid: u32, tid: u32) -> Self {
        let read = |name| procfs::read(format!("/proc/{pid}/task/{tid}/{name}")).unwrap_or_default();
        let text = |name| String::from_utf8_lossy(&read(name)).trim().to_owned();
        let status = ThreadStatus::parse(&read("status"));
        let call = match InCall::parse(&text("syscall")) {
            Some(InCall::Call { nr, .. }) => Some(nr),
            _ => None,
        };
        let place = Some(text("wchan")).filter(|place| place != "0").unwrap_or_default();
        Self { tid, comm: status.comm, state: status.state, place, call }
    }
    /// Whether its control group is frozen: it stops for a tracer, and runs no instruction until it is thawed.
    pub(crate) fn is_frozen(&self) -> bool {
        match self.state {
            'S' => FROZEN.contains(&self.place.as_str()),
            'D' => self.place.contains("refrigerator"),
            _ => false,
        }
    }
    /// What it waits for, and what the user can do, as far as the kernel function shows it.
    fn remedy(&self) -> &'static str {
        const PLACES: [(&str, &str); 7] = [
            ("vfork_done", "until its child made by vfork executes a program or ends"),
            ("kernel_clone", "until its child made by vfork executes a program or ends"),
            ("userfault", "until the program's handler of page faults answers (userfaultfd)"),
            ("request_wait", "until a FUSE file system answers"),
            ("fuse", "until a FUSE file system answers"),
            ("rpc", "until a file server answers (NFS)"),
            ("nfs", "until a file server answers (NFS)"),
        ];
        if self.is_frozen() {
            return "its control group is frozen: thaw it (cgroup.freeze, `docker unpause`) and try again";
        }
        let known = PLACES.iter().find(|(place, _)| self.place.contains(place));
        match (known, self.state) {
            (Some((_, what)), 'D') => what,
            (None, 'D') => "it cannot be stopped there: try again when the wait is over",
            (_, 'R') => {
                "it is ready to run and gets no CPU: try again when the machine or its control group has time for it"
            }
            (_, 'T' | 't') => "it lies in another's stop: let it go on (SIGCONT, or end the debugger)",
            _ => "try again",
        }
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "thread {} ({}) is in state {}", self.tid, self.comm, self.state)?;
        if !self.place.is_empty() {
            write!(to, ", in the kernel's {}", self.place)?;
        }
        if let Some(call) = self.call {
            write!(to, ", system call {call}")?;
        }
        write!(to, "; {}", self.remedy())
    }
}

#[cfg(test)]
mod tests {
    use super::Stuck;

    fn stuck(state: char, place: &str) -> Stuck {
        Stuck { tid: 7, comm: "a".to_owned(), state, place: place.to_owned(), call: Some(58) }
    }

    #[test]
    fn what_it_waits_for_is_reported() {
        assert!(stuck('S', "get_signal").is_frozen() && stuck('D', "__refrigerator").is_frozen());
        assert!(!stuck('S', "pipe_read").is_frozen() && !stuck('R', "get_signal").is_frozen());
        assert_eq!(
            stuck('D', "kernel_clone").to_string(),
            "thread 7 (a) is in state D, in the kernel's kernel_clone, system call 58; until its child made by vfork \
             executes a program or ends"
        );
        assert!(stuck('D', "").to_string().contains("state D, system call 58; it cannot be stopped there"));
        assert!(stuck('S', "get_signal").to_string().ends_with("and try again"));
    }

    #[test]
    fn our_own_state_is_read() {
        let pid = std::process::id();
        let shown = Stuck::of(pid, pid).to_string();
        assert!(shown.starts_with(&format!("thread {pid} (")), "{shown}");
    }
}
