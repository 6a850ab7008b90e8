//! Letting go of one process, so that a batch can seize it, and following it again.
//!
//! In: a process. Out: none of its threads traced; later all of them again, with the children that were born
//! meanwhile. Invariants: TGT-17 a program that the process, or such a child, executed meanwhile is reported. No
//! call returns EINTR for it where the call can be repeated (TGT-3). Does not: decide when.
//!
//! Only one thread can trace another. A thread ends that when its tracee stands in a stop, or ends itself. If the
//! follower ended, births and programs of *all* processes would be missed. So the tracees of one process are
//! stopped.
//!
//! | step | what |
//! |---|---|
//! | R1 | each thread is ordered to stop; where the kernel does not show it later, its call is noted first |
//! | R2 | at its next stop, whatever it is for, a thread is detached, a signal goes with it |
//! | R3 | R2 again until no thread of the process is listed; the other processes are served meanwhile |
//! | B | a batch seizes the process, works, ends |
//! | A1 | all threads are seized |
//! | A2 | if its memory is not what it was before R1, and no exec stop waits: it is reported |
//! | A3 | children that nobody traces and that were not known are seized; those that have executed are reported |
//!
//! Interleavings:
//!
//! - *A thread is born at R2*: the birth is the stop of its maker. The new thread is listed then, and detached at
//!   its own first stop.
//! - *A process is born at R2*: it is followed on.
//! - *An exec at R2*: it is served as ever, and the release fails: there is no process to patch any more.
//! - *A thread blocks without being interruptible* (a parent in `vfork`, until its child executes): the child's
//!   stops are served in R3. After [`STOP_TIME`] the release fails, and the caller ends following instead.
//! - *A thread ends at R2*: its end is served as ever.
//! - *A call is broken off by R1*: it is repeated as a batch repeats it, before the thread is detached.
//! - *The process forks between R3 and A1*: A3 finds the child. A batch that patches takes care of the memory
//!   that the child got.
//! - *It forks between A1 and A3*: the kernel has attached the child to us, so A3 leaves it to its first stop.
//! - *A child executes between R3 and A3*: the kernel clears PF_FORKNOEXEC, which A3 reads before it seizes, and
//!   again afterwards. If an exec stop waits by then, the program is followed as ever.
//! - *A child forks and ends between R3 and A3*: its own children have another parent by then. They are not
//!   found. Stated, not solved.
//! - *The tracer dies*: the kernel detaches from all.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use super::tracer::{Tracer, is_birth};
use super::{Again, Followed};
use crate::living;
use crate::process::Process;
use crate::regs::{NOTES_CALLS, Regs};
use crate::repair::{broken_off, make_again};
use crate::status::{InCall, ThreadStatus};
use crate::sys::own::thread_id;
use crate::sys::ptrace::{self, EVENT_STOP, unless_killed};
use crate::sys::wait::{self, Stop, pause};

/// Limit for the stops of all threads.
const STOP_TIME: Duration = Duration::from_secs(1);

/// A process that is being let go.
#[derive(Debug)]
pub(super) struct Releasing {
    process: Process,
    /// Calls in which threads were before they were ordered to stop.
    before: HashMap<u32, InCall>,
    /// It has executed another program.
    executes: bool,
}

impl Releasing {
    /// R1 for one thread. One that is gone needs no order.
    fn order(&mut self, tid: u32) {
        if NOTES_CALLS && let Ok(call) = self.process.in_call(tid) {
            self.before.insert(tid, call);
        }
        drop(ptrace::interrupt(tid));
    }
    /// R2: detaches a thread from its stop.
    fn detach(&self, stop: Stop) -> io::Result<()> {
        let tid = stop.tid();
        let signal = match stop {
            Stop::Signal { signal, .. } => signal,
            Stop::Event { event: EVENT_STOP, signal: libc::SIGTRAP, .. } => {
                self.repair(tid);
                0
            }
            _ => 0,
        };
        unless_killed(ptrace::detach_with(tid, signal))
    }
    fn repair(&self, tid: u32) {
        let Ok(regs) = Regs::read(tid, self.before.get(&tid)) else { return };
        if let Some(call) = broken_off(&regs) {
            let mask = ptrace::signal_mask(tid).unwrap_or(0);
            make_again(&self.process, tid, &regs, call, mask);
        }
    }
}

impl Tracer {
    /// R1 to R3.
    pub(super) fn release(&mut self, process: Process) -> io::Result<()> {
        let pid = process.pid();
        let own = self.tracees.iter().filter(|(_, tracee)| tracee.tgid == pid);
        let tids: Vec<u32> = own.clone().map(|(&tid, _)| tid).collect();
        let executes =
            own.into_iter().any(|(_, tracee)| tracee.trap.is_some()) || self.ambushes.contains_key(&pid);
        let mut releasing = Releasing { process, before: HashMap::new(), executes };
        if !executes {
            tids.into_iter().for_each(|tid| releasing.order(tid));
        }
        self.releasing = Some(releasing);
        let released = self.until_released(pid);
        self.releasing = None;
        released
    }
    fn until_released(&mut self, pid: u32) -> io::Result<()> {
        let start = Instant::now();
        loop {
            // Computed before the look, so that a tracer without a CPU still looks once more.
            let late = start.elapsed() > STOP_TIME;
            let served = self.serve();
            if self.releasing.as_ref().is_some_and(|one| one.executes) {
                return Err(io::Error::other("it executes another program"));
            }
            if !self.tracees.values().any(|tracee| tracee.tgid == pid) {
                return Ok(());
            }
            if late {
                return Err(io::Error::other(format!("it did not stop in {} s", STOP_TIME.as_secs())));
            }
            if !served {
                pause(start.elapsed());
            }
        }
    }
    /// Whether a thread belongs to the process that is being let go.
    pub(super) fn is_leaving(&self, tid: u32) -> bool {
        let pid = self.releasing.as_ref().map(|one| one.process.pid());
        pid.is_some() && self.tracees.get(&tid).map(|tracee| tracee.tgid) == pid
    }
    /// R2, for a stop that was taken.
    pub(super) fn let_leave(&mut self, stop: Stop) -> io::Result<()> {
        if let Stop::Event { event, .. } = stop
            && is_birth(event)
        {
            self.at_birth(stop.tid())?;
        }
        self.tracees.remove(&stop.tid());
        self.releasing.as_ref().map_or(Ok(()), |releasing| releasing.detach(stop))
    }
    /// Notes that a process has executed a program, which may be the one that is being let go.
    pub(super) fn leaver_executes(&mut self, pid: u32) {
        if let Some(releasing) = self.releasing.as_mut().filter(|one| one.process.pid() == pid) {
            releasing.executes = true;
        }
    }
    /// A1 to A3.
    pub(super) fn follow_again(&mut self, again: &Again) -> io::Result<()> {
        let pid = again.process.pid();
        self.seize(pid)?;
        if again.process.has_lost_memory() && living::runs(pid) && !execs(pid) {
            self.emit(missed(pid, "it executed another program while it was being patched"));
        }
        self.adopt_children(pid, again);
        Ok(())
    }
    /// A3, for the children of one process and for theirs.
    fn adopt_children(&mut self, parent: u32, again: &Again) {
        for child in living::children(parent) {
            if again.known.contains(&child) || self.tracees.contains_key(&child) || is_ours(child) {
                continue;
            }
            let before = living::has_executed(child);
            if self.seize(child).is_err() {
                continue;
            }
            self.emit(Followed::Born { parent, child });
            if before || living::has_executed(child) && !execs(child) {
                self.emit(missed(child, "it was started while its parent was being patched"));
            }
            self.adopt_children(child, again);
        }
    }
}

fn missed(pid: u32, why: &str) -> Followed {
    Followed::Unparked { pid, why: why.to_owned() }
}

/// Whether a process stands in the stop of an exec, which is served later.
fn execs(pid: u32) -> bool {
    matches!(wait::peek(pid), Ok(Some(Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. })))
}

/// Whether the kernel has attached a thread to the calling one.
fn is_ours(tid: u32) -> bool {
    let status = std::fs::read(format!("/proc/{tid}/status")).unwrap_or_default();
    ThreadStatus::parse(&status).tracer == thread_id()
}
