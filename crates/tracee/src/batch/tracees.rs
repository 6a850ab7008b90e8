//! The threads that a batch traces: which of them are to stop, which are held, and how each goes on.
//!
//! Input: threads to seize, orders to stop, stops. Output: threads that are held, or run on. Invariants: TGT-12,
//! argued below; only threads that this thread traces are listed; neither seizing nor detaching stops a
//! thread. Does not: wait for stops, or know why a thread is held.
//!
//! # Orders to stop (TGT-12)
//!
//! An order (PTRACE_INTERRUPT) is one pending bit of a thread. ptrace(2) promises *a* stop for it, not a stop
//! of its own: the next stop clears the bit, whatever its reason. A thread that is ordered to stop may be
//! - *running, or asleep in a call that a signal ends*: it comes to the ordered stop;
//! - *about to take a signal or a trap*: the kernel looks for ordered stops before it looks for signals. So
//!   the ordered stop comes first and the signal stays queued behind it. This holds for a guard's SIGTRAP
//!   too: `pc` is then behind the trapping byte;
//! - *at the end of clone, fork, vfork or exec*: the event's stop comes first and **uses the order up**;
//! - *in a stop already*: that stop is not disturbed, and the order waits until it ends;
//! - *between the calls of a session* (which puts a trap's action back): the stops of each call use the order
//!   up.
//!
//! A thread that is still to stop is marked `wanted`. When such a thread is continued from a stop that was
//! not the ordered one, it is ordered again first, while it still lies in that stop. So that stop is always
//! followed by another. Invariant: TGT-12 no order to stop is lost, however many births, signals and calls
//! come in between. A thread that is born while all are being stopped comes to a stop of its own at birth.
//! Nothing here depends on time.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use trapline_order::Order as _;

use super::report::StopReport;
use crate::calls::Interruption;
use crate::error::TargetError;
use crate::living::until_gone;
use crate::permission;
use crate::process::Process;
use crate::procfs;
use crate::regs::{NOTES_CALLS, Regs};
use crate::repair::{broken_off, make_again};
use crate::seizing::Seizing;
use crate::status::{InCall, ThreadStatus};
use crate::sys::own::thread_id;
use crate::sys::ptrace::{self, unless_killed};
use crate::sys::wait;

/// A thread that we trace.
#[derive(Clone, Copy, Debug)]
struct Tracee {
    /// Its process.
    tgid: u32,
    /// It is to stop, and is held when it does.
    wanted: bool,
    /// `Some` while it is held; true if it lies in a group-stop.
    held: Option<bool>,
    /// The call that it was in before it was ordered to stop, where the kernel does not show that afterwards.
    before: Option<InCall>,
}

/// All threads that this thread traces: of the process, and of its forked children.
#[derive(Debug)]
pub(super) struct Tracees<'p> {
    process: &'p Process,
    known: HashMap<u32, Tracee>,
    /// Forked children are held at their first stop.
    hold_children: bool,
    /// They are followed: none is detached.
    followed: bool,
    /// Threads that are traced and never stop again, each with its process.
    aside: Vec<(u32, u32)>,
    /// All threads of the process are to be stopped, those that are born now too.
    stopping: bool,
    /// Number of threads of the process that were seized so far.
    seized: u64,
}

impl<'p> Tracees<'p> {
    /// None yet.
    pub(super) fn new(process: &'p Process, hold_children: bool) -> Self {
        Self {
            process,
            known: HashMap::new(),
            hold_children,
            followed: false,
            aside: Vec::new(),
            stopping: false,
            seized: 0,
        }
    }
    /// These threads of the process, which the calling thread traces already and goes on to trace.
    pub(super) fn of_follower(process: &'p Process, hold_children: bool, threads: &[u32]) -> Self {
        let mut tracees = Self { followed: true, ..Self::new(process, hold_children) };
        for &tid in threads {
            tracees.adopt(tid, process.pid());
        }
        tracees
    }
    /// Seizes every thread of the process that is not traced yet.
    pub(super) fn seize(&mut self, seizing: &Seizing) -> Result<(), TargetError> {
        let _over = seizing.until_dropped();
        if !self.process.alive() {
            return Err(self.process.gone("it ended"));
        }
        let mut refused = HashMap::new();
        while self.seize_more(seizing, &mut refused)? {}
        if self.known.is_empty() { Err(self.process.gone("it ended")) } else { Ok(()) }
    }
    /// Seizes the threads that are not seized yet; returns whether to look again. A thread that the kernel
    /// refuses is tried again before the reason is looked for. When a thread executes a program, a dead main
    /// thread's number passes to it, and some programs execute programs all the time.
    fn seize_more(
        &mut self,
        seizing: &Seizing,
        refused: &mut HashMap<u32, u32>,
    ) -> Result<bool, TargetError> {
        /// Number of times that an exec may fall between the kernel's refusal and the next try.
        const TRIES: u32 = 16;
        let pid = self.process.pid();
        let mut any = false;
        for tid in self.process.threads()? {
            match seizing.seize(tid, &mut self.known) {
                None => {}
                Some(Ok(())) => {
                    any = true;
                    self.adopt(tid, pid);
                }
                Some(Err(_)) if *refused.entry(tid).or_default() < TRIES => {
                    *refused.entry(tid).or_default() += 1;
                    any = true;
                }
                Some(Err(error)) => any |= self.explain_unseized(tid, error)?,
            }
        }
        Ok(any)
    }
    /// Looks for the reason why a thread cannot be seized; returns whether to look for threads again.
    fn explain_unseized(&self, tid: u32, error: io::Error) -> Result<bool, TargetError> {
        let Ok(status) = self.process.thread_status(tid) else { return Ok(false) };
        // A dying thread cannot be seized. One born from a seized thread was seized by the kernel already.
        if status.tracer == thread_id() || matches!(status.state, 'Z' | 'X') {
            return Ok(false);
        }
        // The tracer is another thread of ours that has ended its work and has not detached yet.
        let other = Path::new("/proc/self/task").join(status.tracer.to_string());
        if other.exists() {
            until_gone(&other);
            if !other.exists() {
                return Ok(true);
            }
        }
        Err(permission::explain(self.process.pid(), &status, error))
    }
    /// The process.
    pub(super) const fn process(&self) -> &'p Process {
        self.process
    }
    /// Number of threads of the process that were seized so far.
    pub(super) const fn seized(&self) -> u64 {
        self.seized
    }
    /// Number of threads that are traced now.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
    /// The threads of the process, in order.
    pub(super) fn threads(&self) -> Vec<u32> {
        let pid = self.process.pid();
        let mut tids: Vec<u32> =
            self.known.iter().filter(|(_, t)| t.tgid == pid).map(|(&tid, _)| tid).collect();
        tids.order();
        tids
    }
    pub(super) fn contains(&self, tid: u32) -> bool {
        self.known.contains_key(&tid)
    }
    /// The process that a listed thread belongs to.
    pub(super) fn tgid(&self, tid: u32) -> Option<u32> {
        self.known.get(&tid).map(|t| t.tgid)
    }
    /// The process that a tracee of this thread belongs to. `None` once the tracee has ended and was reaped:
    /// its id then names no thread, or one that is not ours.
    pub(super) fn tgid_of(tid: u32) -> Option<u32> {
        let text = procfs::read(format!("/proc/{tid}/status")).ok()?;
        let status = ThreadStatus::parse(&text);
        (status.tracer == thread_id()).then_some(status.tgid)
    }
    /// The threads that are not held, but for one that is not waited for.
    pub(super) fn free(&self, except: Option<u32>) -> Vec<u32> {
        let free = self.known.iter().filter(|&(&tid, t)| t.held.is_none() && Some(tid) != except);
        free.map(|(&tid, _)| tid).collect()
    }
    /// The threads that are still to stop, but for one that is not waited for.
    pub(super) fn laggards(&self, except: Option<u32>) -> Vec<u32> {
        let late = self.known.iter().filter(|&(&tid, t)| t.wanted && t.held.is_none() && Some(tid) != except);
        late.map(|(&tid, _)| tid).collect()
    }
    /// A thread of the process that is not held, if there is one.
    pub(super) fn unheld(&self) -> Option<u32> {
        let pid = self.process.pid();
        self.known.iter().find(|(_, t)| t.tgid == pid && t.held.is_none()).map(|(&tid, _)| tid)
    }
    pub(super) fn is_held(&self, tid: u32) -> bool {
        self.known.get(&tid).is_some_and(|t| t.held.is_some())
    }
    /// Whether all threads are being stopped.
    pub(super) const fn stopping(&self) -> bool {
        self.stopping
    }
    fn adopt(&mut self, tid: u32, tgid: u32) -> &mut Tracee {
        let ours = tgid == self.process.pid();
        self.seized += u64::from(ours && !self.known.contains_key(&tid));
        let wanted = self.stopping && ours;
        self.known.entry(tid).or_insert(Tracee { tgid, wanted, held: None, before: None })
    }
    /// Lists a thread that was born of a traced one, and that the kernel has seized.
    pub(super) fn adopt_thread(&mut self, tid: u32, tgid: u32) {
        self.adopt(tid, tgid);
    }
    /// Lists a forked child. It is held if children are, unless it shares its parent's memory.
    pub(super) fn adopt_child(&mut self, child: u32, shares_memory: bool) -> io::Result<()> {
        let hold = self.hold_children && !shares_memory;
        let tracee = self.adopt(child, child);
        tracee.wanted = hold;
        if !hold && tracee.held.take().is_some() {
            unless_killed(ptrace::cont(child, 0))?;
        }
        Ok(())
    }
    /// Removes a thread that has ended; returns the process that it belonged to.
    pub(super) fn forget(&mut self, tid: u32) -> Option<u32> {
        self.known.remove(&tid).map(|t| t.tgid)
    }
    /// Removes a main thread that has ended while others live. Its end is still to be reported, to whoever follows.
    pub(super) fn set_aside(&mut self, tid: u32) {
        self.aside.extend(self.known.remove(&tid).map(|tracee| (tid, tracee.tgid)));
    }
    /// Removes the threads that a process lost by executing a program.
    pub(super) fn keep_only_main(&mut self, pid: u32) {
        self.known.retain(|&tid, tracee| tracee.tgid != pid || tid == pid);
    }
    /// Marks a thread as one that is to stop; returns whether it was not held already.
    pub(super) fn want(&mut self, tid: u32) -> bool {
        let tracee = self.adopt(tid, self.process.pid());
        if tracee.held.is_some() {
            return false;
        }
        tracee.wanted = true;
        true
    }
    /// Unmarks a thread that is not to stop any more.
    pub(super) fn withdraw(&mut self, tid: u32) {
        if let Some(tracee) = self.known.get_mut(&tid) {
            tracee.wanted = false;
        }
    }
    /// Orders a thread to stop. Where the kernel cannot show afterwards what call the thread was in, the call
    /// is noted first.
    pub(super) fn order(&mut self, tid: u32) -> io::Result<()> {
        if NOTES_CALLS {
            let call = self.process.in_call(tid).ok();
            if let Some(tracee) = self.known.get_mut(&tid) {
                tracee.before = call;
            }
        }
        ptrace::interrupt(tid)
    }
    /// Orders all threads of the process to stop, and those that are born from now on.
    pub(super) fn order_all(&mut self) {
        self.stopping = true;
        for tid in self.threads() {
            let Some(tracee) = self.known.get_mut(&tid) else { continue };
            if tracee.held.is_none() && !std::mem::replace(&mut tracee.wanted, true) {
                // A thread that was killed meanwhile needs no order.
                drop(self.order(tid));
            }
        }
    }
    /// Threads that are born from now on are not to stop.
    pub(super) const fn end_stopping(&mut self) {
        self.stopping = false;
    }
    /// Answers an interrupt of ours, a thread's first stop, or a group-stop.
    pub(super) fn answer_stop(&mut self, tid: u32, signal: i32) -> io::Result<()> {
        let group = signal != libc::SIGTRAP;
        let known = self.tgid(tid);
        let tgid = known.or_else(|| Self::tgid_of(tid)).unwrap_or(tid);
        let hold_unborn = known.is_none() && tgid != self.process.pid() && self.hold_children;
        let tracee = self.adopt(tid, tgid);
        if tracee.wanted || hold_unborn {
            tracee.held = Some(group);
            wait::take(tid)?;
            return Ok(());
        }
        unless_killed(if group { ptrace::listen(tid) } else { ptrace::cont(tid, 0) })
    }
    /// Continues a thread from a stop that was not ordered. If the stop used up an order, the order is given
    /// again first (TGT-12).
    pub(super) fn send_on(&self, tid: u32, signal: i32) -> io::Result<()> {
        if self.known.get(&tid).is_some_and(|t| t.wanted && t.held.is_none()) {
            unless_killed(ptrace::interrupt(tid))?;
        }
        unless_killed(ptrace::cont(tid, signal))
    }
    /// Lets a held thread run on, or go back to its group-stop.
    pub(super) fn let_run(&mut self, tid: u32) -> Result<(), TargetError> {
        let Some(tracee) = self.known.get_mut(&tid) else { return Ok(()) };
        let group = tracee.held.take();
        tracee.wanted = false;
        tracee.before = None;
        let run = || {
            if group == Some(true) {
                // The thread stops again at once, and that stop is answered with LISTEN.
                ptrace::interrupt(tid)?;
            }
            ptrace::cont(tid, 0)
        };
        unless_killed(run()).map_err(|e| TargetError::system(tid, "let a thread run", e))
    }
    /// All traced threads, each with its process.
    pub(super) fn all(&self) -> Vec<(u32, u32)> {
        let known = self.known.iter().map(|(&tid, tracee)| (tid, tracee.tgid));
        known.chain(self.aside.iter().copied()).collect()
    }
    /// Lets a held child run on. With `keep` it stays seized. Without it is detached, unless it is followed.
    pub(super) fn release(&mut self, child: u32, keep: bool) -> Result<(), TargetError> {
        if keep || self.followed {
            return self.let_run(child);
        }
        self.forget(child);
        ptrace::detach(child).map_err(|e| TargetError::system(child, "let a forked child run", e))
    }
    /// A stopped thread's registers.
    pub(super) fn regs(&self, tid: u32) -> io::Result<Regs> {
        Regs::read(tid, self.before(tid).as_ref())
    }
    /// The call that a held thread was in when it was ordered to stop; `None` where that is not noted.
    pub(super) fn before(&self, tid: u32) -> Option<InCall> {
        self.known.get(&tid).and_then(|tracee| tracee.before)
    }
    /// Whether a trap of any other thread is unanswered: it waits as a signal, or its thread lies in a stop.
    /// A trap goes from one to the other in one step.
    pub(super) fn others_trapped(&self, tid: u32, signal: i32) -> bool {
        let trapped = |other: u32| {
            let status = self.process.thread_status(other);
            status.is_ok_and(|status| ThreadStatus::has(status.pending, signal) || status.state == 't')
        };
        self.threads().into_iter().any(|other| other != tid && trapped(other))
    }
    /// Repairs a call that returned EINTR. Other restarts are made by the kernel, for which the thread never
    /// left its stop.
    pub(super) fn repair(&self, tid: u32, report: &mut StopReport) {
        let Ok(regs) = self.regs(tid) else { return };
        let Some(call) = broken_off(&regs) else { return };
        let mask = ptrace::signal_mask(tid).unwrap_or(0);
        match make_again(self.process, tid, &regs, call, mask) {
            Some(how) => report.restarted_timeouts += u32::from(how == Interruption::EintrTimeout),
            None => report.interrupted += 1,
        }
    }
    /// Repeats a call that broke off with EINTR because of a signal that the program ignores. Without a
    /// tracer such a signal would never have reached the program (TGT-3). The kernel restarts other calls by
    /// itself. Returns whether a finite timeout begins anew.
    pub(super) fn undo_idle_interruption(&self, tid: u32, signal: i32) -> bool {
        let Ok(regs) = self.regs(tid) else { return false };
        let Some(call) = broken_off(&regs) else { return false };
        let Ok(status) = self.process.thread_status(tid) else { return false };
        let by_default = matches!(signal, libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH | libc::SIGCONT);
        let caught = ThreadStatus::has(status.caught, signal);
        if caught || !(by_default || ThreadStatus::has(status.ignored, signal)) {
            return false;
        }
        let how = make_again(self.process, tid, &regs, call, status.blocked);
        how == Some(Interruption::EintrTimeout)
    }
}
