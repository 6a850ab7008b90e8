//! Looks at each stop, answers it, and only then lets it go (TGT-2).
//!
//! Input: the stops that wait. Output: threads that run on, and events. A signal's stop is never reaped. Its
//! thread is continued from where it stands, so the kernel still delivers the signal if the tracer dies
//! first. A stop in which the thread is to be held is reaped, because it would hide all others. Nothing is
//! lost with it.
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
//! - *between the calls of a [`Session`]* (which puts a trap's action back): the stops of each call use the
//!   order up.
//!
//! A thread that is still to stop is marked `wanted`. When such a thread is continued from a stop that was
//! not the ordered one, it is ordered again first, while it still lies in that stop. So that stop is always
//! followed by another. Invariant: TGT-12 no order to stop is lost, however many births, signals and calls
//! come in between. A thread that is born while all are being stopped comes to a stop of its own at birth.
//! Nothing here depends on time.

use std::io;
use std::time::{Duration, Instant};

use crate::batch::{Batch, Event, Handler, Served};
use crate::calls::{Interruption, Repair};
use crate::error::TargetError;
use crate::gadget::Gadgets;
use crate::living;
use crate::regs::{NOTES_CALLS, Regs};
use crate::remote_options::RemoteOptions;
use crate::session::{Session, may_redo_eintr};
use crate::status::{InCall, ThreadStatus};
use crate::sys::wait::{self, Stop, pause};
use crate::sys::{fd, own, ptrace, signals};

/// Maps the address of a trapping byte to where its thread goes on.
pub(crate) type Guard<'a> = &'a dyn Fn(u64) -> Option<u64>;

const SI_KERNEL: i32 = 0x80;
const ILL_ILLOPN: i32 = 2;

/// Accepts ESRCH: a thread that was killed meanwhile needs nothing more, and its exit follows.
fn unless_killed(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

impl Batch<'_> {
    /// Serves the stops that wait, without blocking. It serves only a few for each thread, since threads that
    /// stop faster than they are served must not keep the tracer from going on. `guard` maps the address of a
    /// trapping byte to the address where its thread goes on.
    ///
    /// # Errors
    /// [`TargetError::Gone`] when the process has ended or executed another program.
    pub fn serve(&mut self, guard: Guard<'_>) -> Result<Served, TargetError> {
        let mut served = Served::default();
        for _ in 0..2 * self.tracees.len() + 16 {
            let Some(stop) = self.next_stop()? else { break };
            self.answer(stop, guard, &mut served)
                .map_err(|e| TargetError::system(stop.tid(), "answer a stopped thread", e))?;
        }
        if self.stopping {
            self.ask_laggards(guard, &mut served)?;
        }
        self.report.guards += u64::from(served.guards);
        self.report.signals += u64::from(served.signals);
        self.check_gone()?;
        Ok(served)
    }
    /// Serves until `until` returns true or `at_most` is over; returns whether `until` became true. `until`
    /// is called after each round of stops, and at least every millisecond.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub fn serve_until(
        &mut self,
        guard: Guard<'_>,
        at_most: Duration,
        until: &mut dyn FnMut(&Self) -> bool,
    ) -> Result<bool, TargetError> {
        let start = Instant::now();
        loop {
            self.serve(guard)?;
            if until(self) {
                return Ok(true);
            }
            let passed = start.elapsed();
            if passed >= at_most {
                return Ok(false);
            }
            pause(passed);
        }
    }
    /// Serves every thread that is not held. Used while a held thread is being run by code that waits for
    /// that thread itself.
    pub(crate) fn serve_others(&mut self, guard: Guard<'_>) -> Result<(), TargetError> {
        let free = self.tracees.iter().filter(|&(&tid, t)| t.held.is_none() && Some(tid) != self.unreaped);
        let others: Vec<u32> = free.map(|(&tid, _)| tid).collect();
        let mut served = Served::default();
        for tid in others {
            if let Ok(Some(stop)) = wait::peek(tid) {
                let fail = |e| TargetError::system(tid, "answer a stopped thread", e);
                self.answer(stop, guard, &mut served).map_err(fail)?;
            }
        }
        self.report.guards += u64::from(served.guards);
        self.report.signals += u64::from(served.signals);
        self.check_gone()
    }
    /// Looks one by one at each thread that is still to stop. A wait for any thread shows the youngest first,
    /// so an old one's stop or end may lie behind those of many births. A thread for which the kernel answers
    /// ECHILD is traced no more: it has ended, and its end was seen.
    fn ask_laggards(&mut self, guard: Guard<'_>, served: &mut Served) -> Result<(), TargetError> {
        let late = self
            .tracees
            .iter()
            .filter(|&(&tid, t)| t.wanted && t.held.is_none() && Some(tid) != self.unreaped);
        let laggards: Vec<u32> = late.map(|(&tid, _)| tid).collect();
        for tid in laggards {
            let fail = |e| TargetError::system(tid, "look at a thread that is to stop", e);
            match wait::peek(tid) {
                Ok(Some(stop)) => self.answer(stop, guard, served).map_err(fail)?,
                // It never stops again, and the kernel reports its end only when all others have ended.
                Ok(None) if tid == self.process.pid() && living::living(tid) != Some(tid) => {
                    self.tracees.remove(&tid);
                }
                Ok(None) => {}
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                    self.tracees.remove(&tid);
                }
                Err(error) => return Err(fail(error)),
            }
        }
        Ok(())
    }
    fn next_stop(&self) -> Result<Option<Stop>, TargetError> {
        if let Some(zombie) = self.unreaped {
            // The zombie would be found again and again, so look at the others one by one.
            let others = self.tracees.iter().filter(|&(&tid, t)| tid != zombie && t.held.is_none());
            return Ok(others.filter_map(|(&tid, _)| wait::peek(tid).ok().flatten()).next());
        }
        match wait::peek_any() {
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(None),
            other => other.map_err(|e| TargetError::system(self.process.pid(), "wait for a thread", e)),
        }
    }
    fn answer(&mut self, stop: Stop, guard: Guard<'_>, served: &mut Served) -> io::Result<()> {
        let tid = stop.tid();
        match stop {
            Stop::Signal { signal, .. } => {
                if self.serve_guard(tid, signal, guard)? {
                    served.guards += 1;
                } else {
                    served.signals += 1;
                    self.undo_idle_interruption(tid, signal);
                    self.send_on(tid, signal)?;
                }
            }
            Stop::Event { event: ptrace::EVENT_STOP, signal, .. } => self.answer_stop(tid, signal)?,
            Stop::Event { event, .. } => {
                served.threads += u32::from(self.answer_event(tid, event)?);
                self.send_on(tid, 0)?;
            }
            Stop::Call { .. } => self.send_on(tid, 0)?,
            Stop::Exit { status, .. } => self.answer_exit(tid, status)?,
        }
        Ok(())
    }
    /// Continues a thread from a stop that was not ordered. If the stop used up an order, the order is given
    /// again first (TGT-12).
    fn send_on(&self, tid: u32, signal: i32) -> io::Result<()> {
        if self.tracees.get(&tid).is_some_and(|t| t.wanted && t.held.is_none()) {
            unless_killed(ptrace::interrupt(tid))?;
        }
        unless_killed(ptrace::cont(tid, signal))
    }
    /// Repeats a call that broke off with EINTR because of a signal that the program ignores. Without a
    /// tracer such a signal would never have reached the program (TGT-3). The kernel restarts other calls by
    /// itself.
    fn undo_idle_interruption(&mut self, tid: u32, signal: i32) {
        let Ok(regs) = self.regs(tid) else { return };
        let (true, Some((nr, args))) = (regs.shows_eintr(), regs.call()) else { return };
        let Ok(status) = self.process.thread_status(tid) else { return };
        let by_default = matches!(signal, libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH | libc::SIGCONT);
        let caught = ThreadStatus::has(status.caught, signal);
        if caught || !(by_default || ThreadStatus::has(status.ignored, signal)) {
            return;
        }
        if let (again, Repair::Again) =
            regs.repaired(may_redo_eintr(self.process, tid, &regs, status.blocked))
            && again.write(tid).is_ok()
        {
            let timeout = self.interruption(nr, &args) == Interruption::EintrTimeout;
            self.report.restarted_timeouts += u64::from(timeout);
        }
    }
    /// Answers an interrupt of ours, a thread's first stop, or a group-stop.
    fn answer_stop(&mut self, tid: u32, signal: i32) -> io::Result<()> {
        let group = signal != libc::SIGTRAP;
        let main = self.process.pid();
        let known = self.tracees.get(&tid).map(|t| t.tgid);
        let tgid = known.or_else(|| self.tgid_of(tid)).unwrap_or(tid);
        let unborn = known.is_none() && tgid != main;
        let hold_children = self.options.hold_children;
        let tracee = self.adopt(tid, tgid);
        if tracee.wanted || unborn && hold_children {
            tracee.held = Some(group);
            wait::take(tid)?;
            return Ok(());
        }
        unless_killed(if group { ptrace::listen(tid) } else { ptrace::cont(tid, 0) })
    }
    /// The process that a tracee of this thread belongs to. `None` once the tracee has ended and was reaped:
    /// its id then names no thread, or one that is not ours.
    fn tgid_of(&self, tid: u32) -> Option<u32> {
        let text = std::fs::read(format!("/proc/{tid}/status")).ok()?;
        let status = ThreadStatus::parse(&text);
        (status.tracer == own::thread_id()).then_some(status.tgid)
    }
    /// Answers an event's stop; returns whether a thread was born.
    fn answer_event(&mut self, tid: u32, event: i32) -> io::Result<bool> {
        let tgid = self.tracees.get(&tid).map_or(tid, |t| t.tgid);
        match event {
            libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                let child = ptrace::event_message(tid)? as u32;
                let Some(child_tgid) = self.tgid_of(child) else {
                    // It was born, ran and ended before its parent's stop was seen: nothing is left to adopt.
                    return Ok(event == libc::PTRACE_EVENT_CLONE);
                };
                if child_tgid == tgid {
                    self.adopt(child, tgid);
                    return Ok(true);
                }
                let vfork = event == libc::PTRACE_EVENT_VFORK;
                self.answer_birth(tgid, child, vfork)?;
            }
            libc::PTRACE_EVENT_EXEC => {
                let pid = tgid;
                self.events.push(Event::Exec { pid });
                self.tracees.retain(|&t, tracee| tracee.tgid != pid || t == pid);
                if pid == self.process.pid() {
                    self.gone = Some("it executed another program");
                }
            }
            _ => {}
        }
        Ok(false)
    }
    fn answer_birth(&mut self, parent: u32, child: u32, vfork: bool) -> io::Result<()> {
        let shares_memory = fd::same_memory(parent, child).unwrap_or(vfork);
        let hold = self.options.hold_children && !shares_memory;
        self.events.push(Event::Forked { parent, child, shares_memory });
        let tracee = self.adopt(child, child);
        tracee.wanted = hold;
        if !hold && tracee.held.take().is_some() {
            unless_killed(ptrace::cont(child, 0))?;
        }
        Ok(())
    }
    fn answer_exit(&mut self, tid: u32, status: i32) -> io::Result<()> {
        let known = self.tracees.remove(&tid);
        let leader = known.is_none_or(|t| t.tgid == tid) && (known.is_some() || tid == self.process.pid());
        if leader {
            self.events.push(Event::Exited { pid: tid, status });
        }
        if tid == self.process.pid() {
            self.gone = Some("it ended");
        }
        let text = std::fs::read(format!("/proc/{tid}/status")).unwrap_or_default();
        if leader && ThreadStatus::parse(&text).ppid == std::process::id() {
            self.unreaped = Some(tid);
            return Ok(());
        }
        wait::take(tid).map(drop)
    }
    /// Answers a trap in a guarded place: sends its thread on, without the signal.
    fn serve_guard(&mut self, tid: u32, signal: i32, guard: Guard<'_>) -> io::Result<bool> {
        let back = match signal {
            libc::SIGTRAP => 1,
            libc::SIGILL => 0,
            _ => return Ok(false),
        };
        let (Ok((_, code)), Ok(mut regs)) = (ptrace::signal_info(tid), Regs::read(tid, None)) else {
            return Ok(false);
        };
        if !matches!((signal, code), (libc::SIGTRAP, SI_KERNEL) | (libc::SIGILL, ILL_ILLOPN)) {
            return Ok(false);
        }
        let Some(resume) = guard(regs.pc().wrapping_sub(back)) else { return Ok(false) };
        regs.set_pc(resume);
        // The pc comes first: if the tracer dies now, the signal's handler finds a pc that needs no help.
        unless_killed(regs.write(tid))?;
        if self.was_reset(signal) {
            // This thread's trap caused the reset if no other thread has one. If another has, a thread that
            // blocked the signal goes on without blocking it until its handler returns. To block it in a
            // thread that did not would block it for good.
            let blocked = !self.others_trapped(tid, signal);
            self.put_back(tid, signal, blocked);
        }
        self.send_on(tid, 0)?;
        Ok(true)
    }
    fn handler_of(&self, signal: i32) -> Option<Handler> {
        if signal == libc::SIGTRAP { self.trap_handler } else { self.illegal_handler }
    }
    fn was_reset(&self, signal: i32) -> bool {
        self.handler_of(signal).is_some_and(|h| h.handler > 1)
            && self.process.status().is_ok_and(|status| !ThreadStatus::has(status.caught, signal))
    }
    /// Whether a trap of any other thread is unanswered: it waits as a signal, or its thread lies in a stop.
    /// A trap goes from one to the other in one step.
    fn others_trapped(&self, tid: u32, signal: i32) -> bool {
        let trapped = |other: u32| {
            let status = self.process.thread_status(other);
            status.is_ok_and(|status| ThreadStatus::has(status.pending, signal) || status.state == 't')
        };
        self.threads().into_iter().any(|other| other != tid && trapped(other))
    }
    /// Undoes what the kernel does when it forces a trap through although the signal is blocked: it resets
    /// the action and unblocks the signal. The thread itself makes a call for that. If that fails the thread
    /// still goes on correctly, but the action stays reset.
    fn put_back(&mut self, tid: u32, signal: i32, blocked: bool) {
        let Some(handler) = self.handler_of(signal) else { return };
        let Ok(maps) = self.process.maps() else { return };
        let Ok(gadgets) = self.gadgets(&maps) else { return };
        let begin = Instant::now();
        let options = RemoteOptions::default();
        let Ok(mut session) = Session::begin(self.process, (tid, None), gadgets, &maps, &options, begin)
        else {
            return;
        };
        *session.restored_mut().1 |= u64::from(blocked) << (signal - 1);
        let set = |session: &mut Session| -> Result<bool, TargetError> {
            let at = session.argument(self.process, &handler.to_bytes())?;
            let args = [signal as u64, at.0, 0, 8, 0, 0];
            Ok(session.call(self.process, libc::SYS_rt_sigaction, args)?.is_ok())
        };
        let done = set(&mut session).unwrap_or(false);
        if session.end(self.process).is_ok() && done {
            self.report.dispositions_restored += 1;
        }
        self.report.longest_stop = self.report.longest_stop.max(begin.elapsed());
    }
    /// Gadgets, checked to be unchanged in the target, or found anew.
    pub(crate) fn gadgets(&mut self, maps: &[crate::Mapping]) -> Result<Gadgets, TargetError> {
        if let Some(found) = self.gadgets.filter(|found| found.hold(self.process)) {
            return Ok(found);
        }
        let found = Gadgets::find(self.process, maps)?;
        self.gadgets = Some(found);
        Ok(found)
    }
    /// Orders a thread to stop. Where the kernel cannot show afterwards what call the thread was in, the call
    /// is noted first.
    pub(crate) fn order(&mut self, tid: u32) -> io::Result<()> {
        if NOTES_CALLS {
            let call = self.process.in_call(tid).ok();
            if let Some(tracee) = self.tracees.get_mut(&tid) {
                tracee.before = call;
            }
        }
        ptrace::interrupt(tid)
    }
    /// A stopped thread's registers.
    pub(crate) fn regs(&self, tid: u32) -> io::Result<Regs> {
        Regs::read(tid, self.before(tid).as_ref())
    }
    /// The call that a held thread was in when it was ordered to stop; `None` where that is not noted.
    pub(crate) fn before(&self, tid: u32) -> Option<InCall> {
        self.tracees.get(&tid).and_then(|tracee| tracee.before)
    }
    /// Orders one thread to stop, and answers its other stops, guard traps included, until it has.
    pub(crate) fn hold(&mut self, tid: u32, at_most: Duration, guard: Guard<'_>) -> Result<(), TargetError> {
        let pid = self.process.pid();
        let tracee = self.adopt(tid, pid);
        if tracee.held.is_some() {
            return Ok(());
        }
        tracee.wanted = true;
        let held = self.until_held(tid, at_most, guard);
        if held.is_err()
            && let Some(tracee) = self.tracees.get_mut(&tid)
        {
            tracee.wanted = false;
        }
        held
    }
    fn until_held(&mut self, tid: u32, at_most: Duration, guard: Guard<'_>) -> Result<(), TargetError> {
        if tid == self.process.pid() && living::living(tid) != Some(tid) {
            self.tracees.remove(&tid);
            return Err(TargetError::NoCaller { pid: tid, why: "its main thread has ended".to_owned() });
        }
        let fail = |e| TargetError::system(tid, "stop a thread", e);
        let start = Instant::now();
        self.order(tid).map_err(fail)?;
        loop {
            // Compute this before the look, so that a tracer that got no CPU for a while still looks once
            // more.
            let late = start.elapsed() >= at_most || signals::asked_to_end(start);
            match wait::peek(tid).map_err(fail)? {
                Some(stop) => self.answer(stop, guard, &mut Served::default()).map_err(fail)?,
                None if late => {}
                None => pause(start.elapsed()),
            }
            self.check_gone()?;
            if self.tracees.get(&tid).is_some_and(|t| t.held.is_some()) {
                return Ok(());
            }
            if late {
                break;
            }
        }
        Err(TargetError::no_stop(self.process.pid(), tid, start.elapsed()))
    }
    /// Lets a held thread run on, or go back to its group-stop.
    pub(crate) fn let_run(&mut self, tid: u32) -> Result<(), TargetError> {
        let Some(tracee) = self.tracees.get_mut(&tid) else { return Ok(()) };
        let group = tracee.held.take();
        tracee.wanted = false;
        tracee.before = None;
        let run = || {
            if group == Some(true) {
                // The thread stops again at once, and `serve` answers that stop with LISTEN.
                ptrace::interrupt(tid)?;
            }
            ptrace::cont(tid, 0)
        };
        unless_killed(run()).map_err(|e| TargetError::system(tid, "let a thread run", e))
    }
}
