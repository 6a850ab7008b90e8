//! The process' memory control group while it is probed, and how it ends.
//!
//! In: a traced process at each look, and at its end. Out: the process let alone where our memory has grown beyond its share (SAFE-7); how it was
//! ended, where a signal did. Does not: decide what a group must have left; `plan::charge` does.
//!
//! A process that is not our child tells its status to its parent alone. We read it of the zombie, or, from Linux 6.15 on, of the pidfd. Where neither
//! is to be had, the group's count of processes that the out-of-memory killer ended is all that is known.

use trapline_target::MemoryGroup;

use super::Traced;
use crate::report::{Ended, Unprobed};
use crate::times::stamps_resident;

/// Signals by which people and programs end others: HUP, INT, QUIT, PIPE, ALRM, TERM, USR1, USR2.
const USUAL: [i32; 8] = [1, 2, 3, 13, 14, 15, 10, 12];

/// The group as it was when we came.
#[derive(Debug)]
pub(super) struct Group {
    group: MemoryGroup,
    killed: Option<u64>,
}

impl Group {
    pub(super) fn of(pid: u32) -> Self {
        let group = MemoryGroup::of(pid);
        let killed = group.killed();
        Self { group, killed }
    }
    /// Whether the out-of-memory killer has ended some process of it since; nothing where that is not told.
    fn is_hit(&self) -> Option<bool> {
        Some(self.group.killed()? > self.killed?)
    }
}

impl Traced {
    /// How a process that is gone has ended; tells of one that something ended.
    pub(super) fn how_it_ended(&mut self) -> Ended {
        let signal = self.process.ended_by();
        let by_memory = self.group.is_hit() == Some(true) && matches!(signal, None | Some(9));
        let Some(text) = ending(signal, by_memory, self.group.group.name()) else { return Ended::Exited };
        self.notices.push(format!(
            "process {} ({}) {text} while it was probed",
            self.process.pid(),
            self.name
        ));
        Ended::Killed { signal, by_memory }
    }
    /// Takes the patches out where what is the process' own of our memory has grown beyond its share. Says so.
    pub(crate) fn stay_in_bounds(&mut self, options: &trapline_patch::Options) -> Option<Unprobed> {
        if self.detached || self.ended.is_some() {
            return None;
        }
        let segments = self.attached.segments().iter();
        let stamps = || segments.map(|segment| stamps_resident(&self.process, segment)).sum();
        let grown = self.attached.overgrown(stamps)?;
        self.detach(options);
        let why = format!(
            "tables of calls took {} KiB there, more than an eighth of what its memory control group {} had left: it was let alone before \
             its end; name fewer functions, or raise the limit",
            grown >> 10,
            self.group.group.name()
        );
        Some(Unprobed::new(self.process.pid(), why))
    }
}

/// For people; nothing where it ended by itself, or as processes are ended.
fn ending(signal: Option<i32>, by_memory: bool, group: &str) -> Option<String> {
    match signal {
        _ if by_memory => {
            Some(format!("was ended by the kernel's out-of-memory killer (memory control group {group})"))
        }
        Some(signal) if !USUAL.contains(&signal) => {
            Some(format!("was ended by signal {signal}{}", name(signal)))
        }
        _ => None,
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        4 => " (SIGILL)",
        5 => " (SIGTRAP)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        31 => " (SIGSYS)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::ending;

    #[test]
    fn what_ended_it_is_told_unless_it_is_usual() {
        assert_eq!(ending(None, false, "/a"), None);
        assert_eq!(ending(Some(15), false, "/a"), None);
        assert_eq!(ending(Some(11), false, "/a").as_deref(), Some("was ended by signal 11 (SIGSEGV)"));
        let memory = "was ended by the kernel's out-of-memory killer (memory control group /a)";
        assert_eq!(ending(Some(9), true, "/a").as_deref(), Some(memory));
        assert_eq!(ending(None, true, "/a").as_deref(), Some(memory));
    }
}
