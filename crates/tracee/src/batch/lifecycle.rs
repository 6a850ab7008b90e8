//! Births, executed programs and ends, of the process and of its forked children.
//!
//! Input: the stops by which the kernel announces them. Output: events for the batch's caller, in the order in
//! which they came. Invariants: once the process is gone it stays gone; a dead child of our own is left for its
//! parent to reap. Does not: let a thread run that was not just born.

use std::io;

use super::report::Event;
use super::tracees::Tracees;
use crate::error::TargetError;
use crate::process::Process;
use crate::procfs;
use crate::status::ThreadStatus;
use crate::sys::{fd, ptrace, wait};

/// What became of the processes so far.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    events: Vec<Event>,
    /// Why the process is gone.
    gone: Option<&'static str>,
    /// A dead child of our own, left for its parent to reap.
    unreaped: Option<u32>,
}

impl Lifecycle {
    /// The events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
    pub(super) const fn is_gone(&self) -> bool {
        self.gone.is_some()
    }
    /// Returns an error if the process is gone.
    pub(super) fn check(&self, process: &Process) -> Result<(), TargetError> {
        self.gone.map_or(Ok(()), |how| Err(process.gone(how)))
    }
    /// A dead child of our own, which waits for its parent and would be found again and again.
    pub(super) const fn unreaped(&self) -> Option<u32> {
        self.unreaped
    }
    /// Answers an event's stop, without letting its thread run; returns whether a thread was born.
    pub(super) fn answer_event(
        &mut self,
        tracees: &mut Tracees<'_>,
        tid: u32,
        event: i32,
    ) -> io::Result<bool> {
        let tgid = tracees.tgid(tid).unwrap_or(tid);
        match event {
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                let child = ptrace::event_message(tid)? as u32;
                let Some(child_tgid) = Tracees::tgid_of(child) else {
                    // It was born, ran and ended before its parent's stop was seen: nothing is left to adopt.
                    return Ok(event == libc::PTRACE_EVENT_CLONE);
                };
                if child_tgid == tgid {
                    tracees.adopt_thread(child, tgid);
                    return Ok(true);
                }
                let vfork = event == libc::PTRACE_EVENT_VFORK;
                let shares_memory = fd::same_memory(tgid, child).unwrap_or(vfork);
                self.events.push(Event::Forked { parent: tgid, child, shares_memory });
                tracees.adopt_child(child, shares_memory)?;
            }
            libc::PTRACE_EVENT_EXEC => {
                self.events.push(Event::Exec { pid: tgid });
                tracees.keep_only_main(tgid);
                if tgid == tracees.process().pid() {
                    self.gone = Some("it executed another program");
                }
            }
            _ => {}
        }
        Ok(false)
    }
    /// Answers a thread's end.
    pub(super) fn answer_exit(&mut self, tracees: &mut Tracees<'_>, tid: u32, status: i32) -> io::Result<()> {
        let main = tracees.process().pid();
        let known = tracees.forget(tid);
        let leader = known.is_none_or(|tgid| tgid == tid) && (known.is_some() || tid == main);
        if leader {
            self.events.push(Event::Exited { pid: tid, status });
        }
        if tid == main {
            self.gone = Some("it ended");
        }
        let text = procfs::read(format!("/proc/{tid}/status")).unwrap_or_default();
        if leader && ThreadStatus::parse(&text).ppid == std::process::id() {
            self.unreaped = Some(tid);
            return Ok(());
        }
        wait::take(tid).map(drop)
    }
}
