//! The process' memory control group while it is probed, and how the process ends.
//!
//! In: a traced process at each look, and at its end. Out: the process let alone where the memory of its
//! probes has grown beyond its share (SAFE-7); how it was ended, where a signal ended it. Does not: decide
//! how much a group must have left; `plan::charge` does.
//!
//! A process that is killed loses its memory first; each of its threads ends by itself, and the whole last.
//! Only then it is known how it ended, so that is waited for, with a bound. The kernel reports the status of
//! a process to its parent alone. Here it is read from the zombie or, since Linux 6.15, from the pidfd. Where
//! neither is possible, all that is known is how many processes of the group the out-of-memory killer has
//! ended.

use std::time::{Duration, Instant};

use trapline_patch::Attached;
use trapline_tracee::MemoryGroup;

use super::target_process::TargetProcess;
use crate::report::{Ended, Unprobed};
use crate::times::stamps_resident;

/// Signals that are usually sent to end a process: HUP, INT, QUIT, PIPE, ALRM, TERM, USR1, USR2.
const USUAL: [i32; 8] = [1, 2, 3, 13, 14, 15, 10, 12];

/// Longest wait for the end of a process that has lost its memory. It takes milliseconds, unless something
/// holds the end up: another tracer, a thread in uninterruptible sleep, or processes in the PID namespace
/// whose first process it is.
const ENDING: Duration = Duration::from_secs(2);
/// How often it is looked whether the process runs another program instead.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The memory control group, and its count of killed processes at attach.
#[derive(Debug)]
pub(super) struct ControlGroup {
    group: MemoryGroup,
    killed: Option<u64>,
}

impl ControlGroup {
    pub(super) fn of(pid: u32) -> Self {
        let group = MemoryGroup::of(pid);
        let killed = group.killed();
        Self { group, killed }
    }
    /// Whether the out-of-memory killer has ended some process of the group since attach; `None` where the
    /// count cannot be read.
    fn is_hit(&self) -> Option<bool> {
        Some(self.group.killed()? > self.killed?)
    }
    /// How a process that has ended, or is about to, ends; and a notice if something ended it, or if that is
    /// not known. `executed`: whether it runs another program instead.
    pub(super) fn how_it_ended(
        &self,
        target: &TargetProcess,
        executed: &dyn Fn() -> bool,
    ) -> (Ended, Option<String>) {
        let begun = Instant::now();
        let mut is_over = target.process.ends_within(LOOK_EVERY);
        while !is_over && begun.elapsed() < ENDING {
            if executed() {
                return (Ended::Exec, None);
            }
            is_over = target.process.ends_within(LOOK_EVERY);
        }
        let signal = target.process.ended_by();
        let by_memory = self.is_hit() == Some(true) && matches!(signal, None | Some(9));
        let notice = |text| format!("process {} ({}) {text}", target.pid(), target.name);
        match ending(signal, by_memory, self.group.name()) {
            Some(text) => {
                (Ended::Killed { signal, by_memory }, Some(notice(format!("{text} while it was probed"))))
            }
            None if is_over => (Ended::Exited, None),
            None => (Ended::Exited, Some(notice(unknown()))),
        }
    }
    /// What to report of a process after its own share of the probes' memory has grown too large (SAFE-7).
    pub(super) fn overgrown(&self, target: &TargetProcess, attached: &Attached) -> Option<Unprobed> {
        let segments = attached.segments().iter();
        let stamps = || segments.map(|segment| stamps_resident(&target.process, segment)).sum();
        let grown = attached.overgrown(stamps)?;
        let why = format!(
            "tables of calls took {} KiB there, more than an eighth of what its memory control group {} had left: it was let alone before \
             its end; name fewer functions, or raise the limit",
            grown >> 10,
            self.group.name()
        );
        Some(Unprobed::new(target.pid(), why))
    }
}

fn unknown() -> String {
    let seconds = ENDING.as_secs();
    format!("has lost its memory, and {seconds} s later it had not ended: how it ended is not known")
}

/// Text for people; `None` if the process ended by itself, or by a signal that is usually sent to end one.
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
    fn what_ended_it_is_reported_unless_it_is_usual() {
        assert_eq!(ending(None, false, "/a"), None);
        assert_eq!(ending(Some(15), false, "/a"), None);
        assert_eq!(ending(Some(11), false, "/a").as_deref(), Some("was ended by signal 11 (SIGSEGV)"));
        let memory = "was ended by the kernel's out-of-memory killer (memory control group /a)";
        assert_eq!(ending(Some(9), true, "/a").as_deref(), Some(memory));
        assert_eq!(ending(None, true, "/a").as_deref(), Some(memory));
    }
}
