//! Looks at each stop, answers it, and only then lets it go (TGT-2).
//!
//! Input: the stops that wait. Output: threads that run on, and events. A signal's stop is never reaped. Its
//! thread is continued from where it stands, so the kernel still delivers the signal if the tracer dies
//! first. A stop in which the thread is to be held is reaped, because it would hide all others. Nothing is
//! lost with it. Invariant: TGT-2. What the stops change belongs to the parts: [`Tracees`], [`Lifecycle`],
//! [`TrapActions`]. Does not: decide which thread is to stop.

use std::io;
use std::time::{Duration, Instant};

use super::gadgets::KnownGadgets;
use super::lifecycle::Lifecycle;
use super::report::{BatchOptions, BatchReport, Event, Served};
use super::tracees::Tracees;
use super::trap_actions::{Guard, TrapActions, leave_guard};
use crate::error::TargetError;
use crate::gadget::Gadgets;
use crate::host::Host;
use crate::living;
use crate::maps::Mapping;
use crate::process::Process;
use crate::seizing::Seizing;
use crate::sys::wait::{self, Stop, pause};
use crate::sys::{ptrace, signals};

/// Limit for a thread's stop, if it runs or sleeps interruptibly. It takes microseconds where the thread gets
/// a CPU.
const STOP_TIME: Duration = Duration::from_secs(2);

/// A seized process, of which every stop is answered.
#[derive(Debug)]
pub(super) struct Serving<'p> {
    tracees: Tracees<'p>,
    lifecycle: Lifecycle,
    traps: TrapActions,
    gadgets: KnownGadgets,
    report: BatchReport,
    /// The thread that follows, if this is a batch in it.
    follower: Option<&'p mut dyn Host>,
}

impl<'p> Serving<'p> {
    /// Seizes every thread of the process.
    pub(super) fn seize(
        process: &'p Process,
        options: BatchOptions,
        seizing: &Seizing,
    ) -> Result<Self, TargetError> {
        let mut serving = Self::new(Tracees::new(process, options.hold_children), None);
        serving.tracees.seize(seizing)?;
        Ok(serving)
    }
    /// The same in the thread that follows the process (steps B2 and B5 of [`follow`](crate::follow)).
    pub(super) fn followed(
        process: &'p Process,
        options: BatchOptions,
        seizing: &Seizing,
        follower: &'p mut dyn Host,
    ) -> Result<Self, TargetError> {
        let threads = follower.lend_threads(process.pid());
        if threads.is_empty() {
            return Err(process.gone("it ended or executed another program"));
        }
        let tracees = Tracees::of_follower(process, options.hold_children, &threads);
        let mut serving = Self::new(tracees, Some(follower));
        // If this fails, all go back to the follower.
        serving.tracees.seize(seizing)?;
        Ok(serving)
    }
    fn new(tracees: Tracees<'p>, follower: Option<&'p mut dyn Host>) -> Self {
        Self {
            tracees,
            lifecycle: Lifecycle::default(),
            traps: TrapActions::default(),
            gadgets: KnownGadgets::default(),
            report: BatchReport::default(),
            follower,
        }
    }
    pub(super) const fn process(&self) -> &'p Process {
        self.tracees.process()
    }
    pub(super) const fn tracees(&self) -> &Tracees<'p> {
        &self.tracees
    }
    pub(super) const fn tracees_mut(&mut self) -> &mut Tracees<'p> {
        &mut self.tracees
    }
    pub(super) const fn traps_mut(&mut self) -> &mut TrapActions {
        &mut self.traps
    }
    /// The events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        self.lifecycle.take_events()
    }
    /// Sums so far.
    pub(super) const fn report(&self) -> BatchReport {
        BatchReport { threads: self.tracees.seized(), ..self.report }
    }
    pub(super) const fn sums(&mut self) -> &mut BatchReport {
        &mut self.report
    }
    /// Gadgets that lie unchanged in the target.
    pub(super) fn gadgets(&mut self, maps: &[Mapping]) -> Result<Gadgets, TargetError> {
        self.gadgets.get(self.tracees.process(), maps)
    }
    pub(super) const fn is_gone(&self) -> bool {
        self.lifecycle.is_gone()
    }
    /// Returns an error if the process is gone.
    pub(super) fn check_gone(&self) -> Result<(), TargetError> {
        self.lifecycle.check(self.process())
    }
    /// Serves the stops that wait, without blocking. It serves only a few for each thread, since threads that
    /// stop faster than they are served must not keep the tracer from going on.
    pub(super) fn serve(&mut self, guard: Guard<'_>) -> Result<Served, TargetError> {
        let mut served = Served::default();
        if self.follower.is_some() {
            self.serve_each(guard, &mut served)?;
        } else {
            for _ in 0..2 * self.tracees.len() + 16 {
                let Some(stop) = self.next_stop()? else { break };
                self.answer(stop, guard, &mut served)
                    .map_err(|e| TargetError::system(stop.tid(), "answer a stopped thread", e))?;
            }
        }
        if self.tracees.stopping() {
            self.ask_laggards(guard, &mut served)?;
        }
        self.report.add_served(served);
        self.check_gone()?;
        Ok(served)
    }
    /// Serves every thread that is not held. Used while a held thread is being run by code that waits for
    /// that thread itself.
    pub(super) fn serve_others(&mut self, guard: Guard<'_>) -> Result<(), TargetError> {
        let mut served = Served::default();
        self.serve_each(guard, &mut served)?;
        self.report.add_served(served);
        self.check_gone()
    }
    /// Looks once at each thread that is not held, and lets the follower serve its own.
    fn serve_each(&mut self, guard: Guard<'_>, served: &mut Served) -> Result<(), TargetError> {
        for tid in self.tracees.free(self.lifecycle.unreaped()) {
            if let Ok(Some(stop)) = wait::peek(tid) {
                let fail = |e| TargetError::system(tid, "answer a stopped thread", e);
                self.answer(stop, guard, served).map_err(fail)?;
            }
        }
        if let Some(follower) = &mut self.follower {
            follower.serve_others();
        }
        Ok(())
    }
    /// Looks one by one at each thread that is still to stop. A wait for any thread shows the youngest first,
    /// so an old one's stop or end may lie behind those of many births. A thread for which the kernel answers
    /// ECHILD is traced no more: it has ended, and its end was seen.
    fn ask_laggards(&mut self, guard: Guard<'_>, served: &mut Served) -> Result<(), TargetError> {
        for tid in self.tracees.laggards(self.lifecycle.unreaped()) {
            let fail = |e| TargetError::system(tid, "look at a thread that is to stop", e);
            match wait::peek(tid) {
                Ok(Some(stop)) => self.answer(stop, guard, served).map_err(fail)?,
                // It never stops again, and the kernel reports its end only when all others have ended.
                Ok(None) if self.is_dead_main(tid) => self.tracees.set_aside(tid),
                Ok(None) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    self.tracees.forget(tid);
                }
                Err(error) => return Err(fail(error)),
            }
        }
        Ok(())
    }
    /// Whether a thread is a main thread that has ended while others live.
    fn is_dead_main(&self, tid: u32) -> bool {
        tid == self.process().pid() && living::living(tid) != Some(tid)
    }
    fn next_stop(&self) -> Result<Option<Stop>, TargetError> {
        if let Some(zombie) = self.lifecycle.unreaped() {
            // The zombie would be found again and again, so look at the others one by one.
            let others = self.tracees.free(Some(zombie));
            return Ok(others.into_iter().find_map(|tid| wait::peek(tid).ok().flatten()));
        }
        match wait::peek_any() {
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            other => other.map_err(|e| TargetError::system(self.process().pid(), "wait for a thread", e)),
        }
    }
    fn answer(&mut self, stop: Stop, guard: Guard<'_>, served: &mut Served) -> io::Result<()> {
        let tid = stop.tid();
        match stop {
            Stop::Signal { signal, .. } => {
                if self.answer_trap(tid, signal, guard)? {
                    served.guards += 1;
                } else {
                    served.signals += 1;
                    let timeout = self.tracees.undo_idle_interruption(tid, signal);
                    self.report.restarted_timeouts += u64::from(timeout);
                    self.tracees.send_on(tid, signal)?;
                }
            }
            Stop::Event { event: ptrace::EVENT_STOP, signal, .. } => self.tracees.answer_stop(tid, signal)?,
            Stop::Event { event, .. } => return self.answer_event(tid, event, served),
            Stop::Call { .. } => self.tracees.send_on(tid, 0)?,
            Stop::Exit { status, .. } => {
                let leads = self.tracees.tgid(tid) == Some(tid);
                self.lifecycle.answer_exit(&mut self.tracees, tid, status)?;
                if let Some(follower) = self.follower.as_mut().filter(|_| leads) {
                    follower.has_ended(tid);
                }
            }
        }
        Ok(())
    }
    /// Answers a birth or an exec. The follower learns of both, and holds a program that is executed.
    fn answer_event(&mut self, tid: u32, event: i32, served: &mut Served) -> io::Result<()> {
        let parent = self.tracees.tgid(tid).unwrap_or(tid);
        let born = self.lifecycle.answer_event(&mut self.tracees, tid, event)?;
        served.threads += u32::from(born);
        let Some(follower) = &mut self.follower else { return self.tracees.send_on(tid, 0) };
        if event == libc::PTRACE_EVENT_EXEC {
            wait::take(tid)?;
            self.tracees.forget(tid);
            return follower.executes(tid);
        }
        if ptrace::is_birth(event) && !born {
            follower.is_born(parent, ptrace::event_message(tid)? as u32);
        }
        self.tracees.send_on(tid, 0)
    }
    /// Answers a trap in a guarded place: sends its thread on, without the signal.
    fn answer_trap(&mut self, tid: u32, signal: i32, guard: Guard<'_>) -> io::Result<bool> {
        if !leave_guard(tid, signal, guard)? {
            return Ok(false);
        }
        let process = self.process();
        if self.traps.was_reset(process, signal) {
            // This thread's trap caused the reset if no other thread has one. If another has, a thread that
            // blocked the signal goes on without blocking it until its handler returns. To block it in a
            // thread that did not would block it for good.
            let blocked = !self.tracees.others_trapped(tid, signal);
            self.traps.put_back(process, &mut self.gadgets, &mut self.report, (tid, signal, blocked));
        }
        self.tracees.send_on(tid, 0)?;
        Ok(true)
    }
    /// Orders one thread to stop, and answers all other stops, guard traps included, until it has.
    pub(super) fn hold(&mut self, tid: u32, guard: Guard<'_>) -> Result<(), TargetError> {
        if !self.tracees.want(tid) {
            return Ok(());
        }
        let held = self.until_held(tid, guard);
        if held.is_err() {
            self.tracees.withdraw(tid);
        }
        held
    }
    fn until_held(&mut self, tid: u32, guard: Guard<'_>) -> Result<(), TargetError> {
        if self.is_dead_main(tid) {
            self.tracees.set_aside(tid);
            return Err(TargetError::NoCaller { pid: tid, why: "its main thread has ended".to_owned() });
        }
        let fail = |e| TargetError::system(tid, "stop a thread", e);
        let start = Instant::now();
        self.tracees.order(tid).map_err(fail)?;
        loop {
            // Compute this before the look, so that a tracer that got no CPU for a while still looks once
            // more.
            let late = start.elapsed() >= STOP_TIME || signals::asked_to_end(start);
            match wait::peek(tid).map_err(fail)? {
                Some(stop) => self.answer(stop, guard, &mut Served::default()).map_err(fail)?,
                None if late => {}
                // The thread may wait for its child made by vfork, which is seized and stops at its birth.
                None => {
                    self.serve(guard)?;
                    if !self.tracees.is_held(tid) {
                        pause(start.elapsed());
                    }
                }
            }
            self.check_gone()?;
            if self.tracees.is_held(tid) {
                return Ok(());
            }
            if late {
                break;
            }
        }
        Err(TargetError::no_stop(self.process().pid(), tid, start.elapsed()))
    }
}

impl Drop for Serving<'_> {
    /// Step B5. A batch of its own thread leaves that to the kernel, which detaches at the thread's end.
    fn drop(&mut self) {
        let Some(follower) = self.follower.take() else { return };
        for (tid, tgid) in self.tracees.all() {
            // The stop of a thread that is not held is still to be answered.
            if self.tracees.is_held(tid) {
                // A thread that is gone needs nothing; the follower finds that out.
                drop(self.tracees.let_run(tid));
            }
            follower.take_back(tid, tgid);
        }
    }
}
