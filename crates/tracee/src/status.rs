//! What /proc shows of one thread.
//!
//! Input: the kernel's text. Output: values. A field that the kernel does not show keeps its default.

use crate::numbers;

/// A thread's seccomp mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Seccomp {
    /// No restriction.
    #[default]
    Off,
    /// Only read, write, exit, sigreturn.
    Strict,
    /// A BPF filter.
    Filter,
}

/// Facts from /proc/PID/task/TID/status. Signal sets have signal `n` at bit `n − 1`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ThreadStatus {
    /// Its thread id.
    pub tid: u32,
    /// Its process.
    pub tgid: u32,
    /// Its name.
    pub comm: String,
    /// State letter: R, S, D, T, t, Z, X, I. A thread that was removed while the kernel wrote the text is X.
    pub state: char,
    /// Parent process.
    pub ppid: u32,
    /// The thread that traces it, 0 for none.
    pub tracer: u32,
    /// Real, effective, saved, file-system user ids.
    pub uids: [u32; 4],
    /// Real, effective, saved, file-system group ids.
    pub gids: [u32; 4],
    /// Its pid in each pid namespace, ours first; none if it was removed while the kernel wrote the text.
    pub ns_pids: Vec<u32>,
    /// Signals pending for the thread.
    pub pending: u64,
    /// Signals pending for the process.
    pub shared_pending: u64,
    /// Blocked signals.
    pub blocked: u64,
    /// Ignored signals.
    pub ignored: u64,
    /// Signals that have a handler.
    pub caught: u64,
    /// Effective capabilities.
    pub cap_eff: u64,
    /// Permitted capabilities.
    pub cap_prm: u64,
    /// Seccomp mode.
    pub seccomp: Seccomp,
    /// It has a user shadow stack (x86_Thread_features: shstk).
    pub shadow_stack: bool,
    /// It has an address space (kernel threads and zombies have none).
    pub has_memory: bool,
}

/// The content of /proc/PID/task/TID/syscall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InCall {
    /// It is on a CPU or ready to run.
    Running,
    /// It is blocked in a system call.
    Call {
        /// Its number.
        nr: u64,
        /// Its six arguments.
        args: [u64; 6],
        /// Stack pointer.
        sp: u64,
        /// Instruction pointer (after the `syscall`).
        pc: u64,
    },
    /// It is blocked outside a call: in a page fault, or stopped.
    Elsewhere {
        /// Stack pointer.
        sp: u64,
        /// Instruction pointer.
        pc: u64,
    },
}

impl InCall {
    /// Whether the thread may be in a call that creates a thread or a process.
    #[must_use]
    pub fn creates(&self) -> bool {
        match self {
            Self::Running => true,
            Self::Call { nr, .. } => numbers::CREATING.contains(&(*nr as i64)),
            Self::Elsewhere { .. } => false,
        }
    }
}

impl ThreadStatus {
    /// Parses a status text, in which the thread's name may be any bytes.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let mut status = Self { state: '?', ..Self::default() };
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else { continue };
            status.set(key, value.trim());
        }
        // The kernel takes a thread's numbers away when it removes the thread, and writes 0 for each from then on.
        if status.ns_pids.contains(&0) {
            status.ns_pids.clear();
            status.state = 'X';
        }
        status
    }
    fn set(&mut self, key: &str, value: &str) {
        let number = || value.parse().unwrap_or(0);
        let hex = || u64::from_str_radix(value, 16).unwrap_or(0);
        match key {
            "Name" => value.clone_into(&mut self.comm),
            "State" => self.state = value.chars().next().unwrap_or('?'),
            "Tgid" => self.tgid = number(),
            "Pid" => self.tid = number(),
            "PPid" => self.ppid = number(),
            "TracerPid" => self.tracer = number(),
            "Uid" => self.uids = four(value),
            "Gid" => self.gids = four(value),
            "NSpid" => self.ns_pids = value.split_whitespace().filter_map(|n| n.parse().ok()).collect(),
            "SigPnd" => self.pending = hex(),
            "ShdPnd" => self.shared_pending = hex(),
            "SigBlk" => self.blocked = hex(),
            "SigIgn" => self.ignored = hex(),
            "SigCgt" => self.caught = hex(),
            "CapPrm" => self.cap_prm = hex(),
            "CapEff" => self.cap_eff = hex(),
            "VmSize" => self.has_memory = true,
            "Seccomp" => {
                self.seccomp = match value {
                    "1" => Seccomp::Strict,
                    "2" => Seccomp::Filter,
                    _ => Seccomp::Off,
                }
            }
            "x86_Thread_features" => self.shadow_stack = value.split_whitespace().any(|f| f == "shstk"),
            _ => {}
        }
    }
    /// Whether a signal is in a set.
    #[must_use]
    pub const fn has(set: u64, signal: i32) -> bool {
        set >> (signal - 1) & 1 == 1
    }
}

fn four(value: &str) -> [u32; 4] {
    let mut ids = [0; 4];
    for (id, text) in ids.iter_mut().zip(value.split_whitespace()) {
        *id = text.parse().unwrap_or(0);
    }
    ids
}

impl InCall {
    /// Parses a `syscall` text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "running" {
            return Some(Self::Running);
        }
        let mut fields = text.split(' ');
        let nr: i64 = fields.next()?.parse().ok()?;
        let mut rest = fields.map(|f| u64::from_str_radix(f.trim_start_matches("0x"), 16).ok());
        let mut next = || rest.next().flatten();
        if nr < 0 {
            return Some(Self::Elsewhere { sp: next()?, pc: next()? });
        }
        let args = [next()?, next()?, next()?, next()?, next()?, next()?];
        Some(Self::Call { nr: nr as u64, args, sp: next()?, pc: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::{InCall, Seccomp, ThreadStatus};

    #[test]
    fn texts_are_read() {
        let status = ThreadStatus::parse(
            b"Name:\ta b\nState:\tS (sleeping)\nTgid:\t7\nPid:\t9\nUid:\t1\t2\t3\t4\nNSpid:\t9\t1\nSigBlk:\t\
             0000000000000010\nSeccomp:\t2\nVmSize:\t 1 kB\nx86_Thread_features:\tshstk wrss\n",
        );
        assert_eq!((status.comm.as_str(), status.state, status.tgid, status.tid), ("a b", 'S', 7, 9));
        assert_eq!((status.uids, status.ns_pids.as_slice()), ([1, 2, 3, 4], [9, 1].as_slice()));
        assert!(ThreadStatus::has(status.blocked, libc::SIGTRAP) && status.has_memory && status.shadow_stack);
        assert_eq!(status.seccomp, Seccomp::Filter);
        let removed =
            ThreadStatus::parse(b"Name:\ta\nState:\tS (sleeping)\nTgid:\t7\nPid:\t9\nNSpid:\t0\t0\n");
        assert_eq!((removed.state, removed.tgid, removed.ns_pids), ('X', 7, vec![]));
        assert_eq!(InCall::parse("running\n"), Some(InCall::Running));
        assert_eq!(InCall::parse("-1 0x10 0x20\n"), Some(InCall::Elsewhere { sp: 16, pc: 32 }));
        let call = InCall::parse("232 0x4 0x5 0x6 0xffffffff 0x0 0x1 0x7ff0 0x7f01");
        assert_eq!(
            call,
            Some(InCall::Call { nr: 232, args: [4, 5, 6, 0xffff_ffff, 0, 1], sp: 0x7ff0, pc: 0x7f01 })
        );
    }
}
