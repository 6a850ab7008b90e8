//! Which thread makes our calls, or that each does in its turn.
//!
//! Input: a seized process. Output: a held thread and a session on it. Threads are tried in the order of
//! [`Fitness`]. One with a finite timeout that begins anew is tried last, after waiting for others (and
//! reported).
//! Invariant: a thread that was held for a session which did not begin runs on, and one that was ordered to
//! stop in vain is not held later. Does not: make the calls.
//!
//! # Threads that wait uninterruptibly
//!
//! Such a thread cannot be stopped now. One that makes one child by vfork after the other is nearly always
//! seen like that: between two children it runs for microseconds, and looks would meet those by chance. So it
//! is ordered to stop while it waits. The order stays with it (TGT-12), and the thread stops at the wait's
//! end, before it runs anything. Meanwhile other threads are still looked at. As the order may restart a call
//! with a timeout, it is given only when such threads are tried too.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::fitness::{Fitness, candidates, has_ended, none_fit, waits_uninterruptibly};
use super::remote::RemoteCaller;
use super::serving::Serving;
use super::trap_actions::Guard;
use crate::error::TargetError;
use crate::maps::Mapping;
use crate::remote_options::RemoteOptions;
use crate::session::Session;
use crate::sys::{signals, wait::pause};

/// How long to wait while every thread waits uninterruptibly, as a thread does until its page is read, or
/// until a child made by vfork executes its program.
const UNINTERRUPTIBLE: Duration = Duration::from_secs(2);

/// A choice among the running threads of a seized process.
pub(super) struct Choice<'b, 'p, 'a> {
    serving: &'b mut Serving<'p>,
    maps: Vec<Mapping>,
    options: &'a RemoteOptions,
    guard: Guard<'a>,
    start: Instant,
    /// Threads that are to stop at the end of an uninterruptible wait.
    ordered: Vec<u32>,
}

impl<'b, 'p, 'a> Choice<'b, 'p, 'a> {
    pub(super) fn new(
        serving: &'b mut Serving<'p>,
        options: &'a RemoteOptions,
        guard: Guard<'a>,
    ) -> Result<Self, TargetError> {
        let maps = serving.process().maps()?;
        Ok(Self { serving, maps, options, guard, start: Instant::now(), ordered: Vec::new() })
    }
    /// Stops one fit thread.
    pub(super) fn any(mut self) -> Result<RemoteCaller<'b, 'p>, TargetError> {
        let found = self.first_fit();
        self.withdraw_orders();
        found.map(|session| RemoteCaller::new(self.serving, session, true))
    }
    fn first_fit(&mut self) -> Result<Session, TargetError> {
        let mut why = None;
        loop {
            let late = self.is_late();
            let threads = self.serving.tracees().threads();
            let stopped = threads.iter().copied().filter(|&tid| self.has_stopped(tid)).collect::<Vec<_>>();
            let fit = candidates(self.serving.process(), threads, worst(late));
            for tid in stopped.into_iter().chain(fit) {
                match self.try_thread(tid) {
                    Ok(session) => return Ok(session),
                    Err(error) if self.serving.is_gone() => return Err(error),
                    // Why a thread is unfit is the better error; that another one did not stop comes second.
                    Err(error) => {
                        why = why.filter(|e| matches!(e, TargetError::NoCaller { .. })).or(Some(error))
                    }
                }
            }
            let enough = self.start.elapsed() >= UNINTERRUPTIBLE || signals::asked_to_end(self.start);
            if late && (why.is_some() || enough) {
                let none = || none_fit(self.serving.process(), &self.serving.tracees().threads());
                return Err(why.unwrap_or_else(none));
            }
            if late {
                for tid in self.serving.tracees().threads() {
                    self.order_waiting(tid);
                }
            }
            self.wait()?;
        }
    }
    /// Makes each thread make calls in its turn, until `ask` returns false. A thread is stopped only for its
    /// own calls. One that is born meanwhile is asked too. One in a call with a timeout gets
    /// `options.patience` to leave it first. One that no signal reaches in all that time is not asked: it
    /// waits for one child of its vfork, or for a device.
    pub(super) fn each(
        mut self,
        ask: &mut dyn FnMut(&mut RemoteCaller<'_, 'p>) -> Result<bool, TargetError>,
    ) -> Result<(), TargetError> {
        let done = self.ask_each(ask);
        self.withdraw_orders();
        done
    }
    fn ask_each(
        &mut self,
        ask: &mut dyn FnMut(&mut RemoteCaller<'_, 'p>) -> Result<bool, TargetError>,
    ) -> Result<(), TargetError> {
        let mut asked = HashSet::new();
        loop {
            let late = self.is_late();
            let worst = worst(late);
            let mut open = self.serving.tracees().threads();
            open.retain(|tid| !asked.contains(tid));
            if open.is_empty() {
                return Ok(());
            }
            for tid in open {
                if self.has_ended(tid) {
                    asked.insert(tid);
                    continue;
                }
                if !self.has_stopped(tid) && Fitness::of(self.serving.process(), tid) > worst {
                    if late {
                        self.order_waiting(tid);
                    }
                    continue;
                }
                let session = match self.try_thread(tid) {
                    Ok(begun) => begun,
                    Err(_) if !self.serving.is_gone() && self.has_ended(tid) => continue,
                    Err(error) => return Err(error),
                };
                asked.insert(tid);
                let mut caller = RemoteCaller::new(self.serving, session, true);
                let goes_on = ask(&mut caller)?;
                caller.finish()?;
                if !goes_on {
                    return Ok(());
                }
            }
            if self.start.elapsed() >= self.options.patience + UNINTERRUPTIBLE {
                return Ok(());
            }
            self.wait()?;
        }
    }
    /// Whether enough time has passed to restart a call with a finite timeout.
    fn is_late(&self) -> bool {
        self.start.elapsed() >= self.options.patience
    }
    fn has_ended(&self, tid: u32) -> bool {
        !self.serving.tracees().contains(tid) || has_ended(self.serving.process(), tid)
    }
    fn wait(&mut self) -> Result<(), TargetError> {
        self.serving.serve(self.guard)?;
        pause(self.start.elapsed());
        Ok(())
    }
    /// Orders a thread that waits uninterruptibly to stop when the wait is over.
    fn order_waiting(&mut self, tid: u32) {
        if self.ordered.contains(&tid) || !waits_uninterruptibly(self.serving.process(), tid) {
            return;
        }
        let tracees = self.serving.tracees_mut();
        // A thread that was killed meanwhile needs no order.
        if tracees.want(tid) && tracees.order(tid).is_ok() {
            self.ordered.push(tid);
        }
    }
    /// Whether a thread has come to the stop for which it was ordered.
    fn has_stopped(&self, tid: u32) -> bool {
        self.ordered.contains(&tid) && self.serving.tracees().is_held(tid)
    }
    fn withdraw_orders(&mut self) {
        for tid in std::mem::take(&mut self.ordered) {
            let tracees = self.serving.tracees_mut();
            if tracees.is_held(tid) {
                // One that was killed meanwhile does not run on.
                drop(tracees.let_run(tid));
            } else {
                tracees.withdraw(tid);
            }
        }
    }
    fn try_thread(&mut self, tid: u32) -> Result<Session, TargetError> {
        self.ordered.retain(|&ordered| ordered != tid);
        let gadgets = self.serving.gadgets(&self.maps)?;
        let since = Instant::now();
        self.serving.hold(tid, self.guard)?;
        let thread = (tid, self.serving.tracees().before(tid));
        match Session::begin(self.serving.process(), thread, gadgets, &self.maps, self.options, since) {
            Ok(session) => Ok(session),
            Err(error) => {
                self.serving.tracees_mut().let_run(tid)?;
                Err(error)
            }
        }
    }
}

const fn worst(late: bool) -> Fitness {
    if late { Fitness::Timeout } else { Fitness::Running }
}

/// Begins a session on one of the threads, which are held already. The thread stays held afterwards.
pub(super) fn any_held<'b, 'p>(
    serving: &'b mut Serving<'p>,
    options: &RemoteOptions,
) -> Result<RemoteCaller<'b, 'p>, TargetError> {
    let process = serving.process();
    let maps = process.maps()?;
    let gadgets = serving.gadgets(&maps)?;
    let threads = serving.tracees().threads();
    let mut why = None;
    for &tid in &threads {
        let thread = (tid, serving.tracees().before(tid));
        match Session::begin(process, thread, gadgets, &maps, options, Instant::now()) {
            Ok(session) => return Ok(RemoteCaller::new(serving, session, false)),
            Err(error) => why = Some(error),
        }
    }
    Err(why.unwrap_or_else(|| none_fit(process, &threads)))
}
