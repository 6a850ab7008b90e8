//! The thread that follows: it serves the stops of all followed processes.
//!
//! In: orders, stops. Out: events. Invariants: TGT-10, TGT-11, TGT-17. Does not: stop a thread.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::{Followed, Order};
use crate::ambush::{Ambush, State};
use crate::bell::Bell;
use crate::entry_trap::EntryTrap;
use crate::error::TargetError;
use crate::host::{Host, Request, Standing};
use crate::living;
use crate::park::Parked;
use crate::permission;
use crate::procfs;
use crate::seizing::Seizing;
use crate::status::ThreadStatus;
use crate::sys::ptrace::{self, EVENT_STOP};
use crate::sys::wait::{self, Stop};

/// How long the tracer sleeps when no tracee is stopped.
const REST: Duration = Duration::from_micros(300);
/// Time that a program may take from its exec to its entry point. After that, following ends without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A followed thread.
#[derive(Debug)]
struct Tracee {
    tgid: u32,
    /// Set while it is on its way to the entry point of a program that it executed.
    trap: Option<EntryTrap>,
}

/// State of the thread.
#[derive(Debug)]
pub(super) struct Tracer {
    inbox: Receiver<Order>,
    outbox: Sender<Followed>,
    /// Rings when a program waits to be probed.
    news: Arc<Bell>,
    answer: Sender<io::Result<()>>,
    /// Threads that no batch has.
    tracees: HashMap<u32, Tracee>,
    /// Programs that are on their way to their rendezvous. Nobody traces them.
    ambushes: HashMap<u32, Ambush>,
}

impl Tracer {
    /// Follows nothing yet.
    pub(super) fn new(
        inbox: Receiver<Order>,
        (outbox, news): (Sender<Followed>, Arc<Bell>),
        answer: Sender<io::Result<()>>,
    ) -> Self {
        Self { inbox, outbox, news, answer, tracees: HashMap::new(), ambushes: HashMap::new() }
    }
    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        loop {
            let rest = if self.serve() { Duration::ZERO } else { REST };
            match self.inbox.recv_timeout(rest) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return self.finish(),
                Ok(Order::Follow(pid)) => self.answered(|own| own.seize(pid)),
                Ok(Order::Resume(parked)) => self.answered(|own| own.adopt(parked)),
                // A caller that is gone needs no answer.
                Ok(Order::OfBatch(Request::Stands(pid, to))) => drop(to.send(self.standing(pid))),
                Ok(Order::OfBatch(Request::Batch(batch))) => batch.run(&mut self),
            }
        }
    }
    fn answered(&mut self, obey: impl FnOnce(&mut Self) -> io::Result<()>) {
        let done = obey(self);
        drop(self.answer.send(done));
    }
    fn standing(&self, pid: u32) -> Standing {
        let mut own = self.tracees.values().filter(|tracee| tracee.tgid == pid).peekable();
        let follows = own.peek().is_some();
        if self.ambushes.contains_key(&pid) || own.any(|tracee| tracee.trap.is_some()) {
            return Standing::Starting;
        }
        if follows { Standing::Followed } else { Standing::Unknown }
    }
    /// Waits for programs that are on the way to their entry points, and removes the breakpoints of those
    /// that do not get there.
    fn finish(mut self) {
        let deadline = Instant::now() + PATIENCE;
        let waits =
            |own: &Self| !own.ambushes.is_empty() || own.tracees.values().any(|tracee| tracee.trap.is_some());
        while waits(&self) && Instant::now() < deadline {
            if !self.serve() {
                std::thread::sleep(REST);
            }
        }
        for (pid, ambush) in self.ambushes.drain() {
            ambush.cancel();
            drop(self.outbox.send(Followed::Unparked { pid, why: why_late() }));
        }
        let waiting = self.tracees.iter_mut().filter_map(|(&tid, tracee)| Some((tid, tracee.trap.take()?)));
        for (tid, trap) in waiting {
            // If it is gone, so is the breakpoint.
            drop(trap.clear());
            drop(self.outbox.send(Followed::Unparked { pid: tid, why: why_late() }));
        }
    }
    /// Seizes all threads of a process.
    fn seize(&mut self, pid: u32) -> io::Result<()> {
        Seizing::default().seize_all(pid, &mut self.tracees, || Tracee { tgid: pid, trap: None })
    }
    fn adopt(&mut self, mut parked: Parked) -> io::Result<()> {
        let pid = parked.pid();
        // What could be seized but not put back must not stay stopped.
        if !parked.seize().inspect_err(|_| drop(ptrace::detach(pid)))? {
            self.emit(Followed::Strayed { pid });
        }
        self.tracees.insert(pid, Tracee { tgid: pid, trap: None });
        ptrace::cont(pid, 0)
    }
    /// Serves all stops that wait; returns whether there were any.
    fn serve(&mut self) -> bool {
        let tids: Vec<u32> = self.tracees.keys().copied().collect();
        let mut any = self.serve_ambushes();
        for tid in tids {
            match wait::peek(tid) {
                Ok(None) => {}
                Ok(Some(stop)) => {
                    any = true;
                    // A tracee that vanishes between its stop and the answer is seen as gone in the next
                    // round.
                    drop(self.answer_stop(stop));
                }
                // It is no tracee any more: it was killed, or another thread's exec took its place.
                Err(_) => drop(self.tracees.remove(&tid)),
            }
        }
        any
    }
    /// Hands over programs that have come to their rendezvous; returns whether there were any.
    fn serve_ambushes(&mut self) -> bool {
        let states: Vec<_> = self.ambushes.iter().map(|(&pid, ambush)| (pid, ambush.state())).collect();
        let mut any = false;
        for (pid, state) in states {
            if state == State::OnItsWay {
                continue;
            }
            any = true;
            let Some(ambush) = self.ambushes.remove(&pid) else { continue };
            match state {
                State::Arrived => self.emit(Followed::AtEntry(Parked::in_ambush(ambush))),
                State::Passed => {
                    ambush.cancel();
                    // It is followed on, unprobed.
                    drop(self.seize(pid));
                    let why = "it went on from its rendezvous, since this tracer had no time".to_owned();
                    self.emit(Followed::Unparked { pid, why });
                }
                State::OnItsWay | State::Gone => self.emit(Followed::Exited { pid }),
            }
        }
        any
    }
    fn answer_stop(&mut self, stop: Stop) -> io::Result<()> {
        let tid = stop.tid();
        if let Stop::Exit { .. } = stop {
            let tracee = self.tracees.remove(&tid);
            if tracee.is_some_and(|tracee| tracee.tgid == tid) {
                self.emit(Followed::Exited { pid: tid });
            }
            return if living::is_own_child(tid) { Ok(()) } else { wait::take(tid).map(drop) };
        }
        wait::take(tid)?;
        match stop {
            Stop::Event { event: EVENT_STOP, signal, .. } if signal != libc::SIGTRAP => ptrace::listen(tid),
            Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. } => self.at_exec(tid),
            Stop::Event { event, .. } if ptrace::is_birth(event) => {
                self.at_birth(tid)?;
                ptrace::cont(tid, 0)
            }
            Stop::Signal { signal, .. } => {
                let trap = self.tracees.get(&tid).and_then(|tracee| tracee.trap.as_ref());
                let is_hit = trap.is_some_and(|trap| trap.is_hit(tid, signal));
                if is_hit { self.at_entry(tid) } else { ptrace::cont(tid, signal) }
            }
            _ => ptrace::cont(tid, 0),
        }
    }
    /// Holds a program that a process has executed, which stands in that stop.
    fn at_exec(&mut self, tid: u32) -> io::Result<()> {
        // Threads other than the one that executed are gone; it has the leader's id now.
        self.tracees.retain(|_, tracee| tracee.tgid != tid);
        if let Some(ambush) = Ambush::at_exec(tid) {
            self.tracees.remove(&tid);
            self.ambushes.insert(tid, ambush);
            return ptrace::detach(tid);
        }
        match EntryTrap::set(tid) {
            Ok(trap) => {
                let is_there = trap.is_there();
                self.tracees.insert(tid, Tracee { tgid: tid, trap: Some(trap) });
                if is_there { self.at_entry(tid) } else { ptrace::cont(tid, 0) }
            }
            Err(error) => self.run_unprobed(tid, &error),
        }
    }
    fn at_entry(&mut self, tid: u32) -> io::Result<()> {
        let Some(trap) = self.tracees.remove(&tid).and_then(|tracee| tracee.trap) else { return Ok(()) };
        match Parked::at_entry(tid, trap) {
            Ok(parked) => self.emit(Followed::AtEntry(parked)),
            Err(error) => self.run_unprobed(tid, &error)?,
        }
        Ok(())
    }
    /// A program that cannot be held (another class, another user, no room for the code that waits) runs on, followed and
    /// not probed.
    fn run_unprobed(&mut self, tid: u32, error: &io::Error) -> io::Result<()> {
        self.emit(Followed::Unparked { pid: tid, why: why_unparked(tid, error) });
        self.tracees.insert(tid, Tracee { tgid: tid, trap: None });
        ptrace::cont(tid, 0)
    }
    /// Lists the thread or process that a thread has made.
    fn at_birth(&mut self, tid: u32) -> io::Result<()> {
        let child = ptrace::event_message(tid)? as u32;
        let tgid = tgid(child).unwrap_or(child);
        self.tracees.entry(child).or_insert(Tracee { tgid, trap: None });
        if tgid == child {
            let parent = self.tracees.get(&tid).map_or(tid, |tracee| tracee.tgid);
            self.emit(Followed::Born { parent, child });
        }
        Ok(())
    }
    fn emit(&self, event: Followed) {
        // The other end is closed only while the follower is being dropped.
        let waits = matches!(event, Followed::AtEntry(_));
        drop(self.outbox.send(event));
        if waits {
            self.news.ring();
        }
    }
}

/// Steps B2 to B5.
impl Host for Tracer {
    fn lend_threads(&mut self, pid: u32) -> Vec<u32> {
        if self.standing(pid) != Standing::Followed {
            return Vec::new();
        }
        self.tracees.extract_if(|_, tracee| tracee.tgid == pid).map(|(tid, _)| tid).collect()
    }
    fn take_back(&mut self, tid: u32, tgid: u32) {
        self.tracees.insert(tid, Tracee { tgid, trap: None });
    }
    fn serve_others(&mut self) {
        self.serve();
    }
    fn is_born(&mut self, parent: u32, child: u32) {
        self.emit(Followed::Born { parent, child });
    }
    fn has_ended(&mut self, pid: u32) {
        self.emit(Followed::Exited { pid });
    }
    fn executes(&mut self, pid: u32) -> io::Result<()> {
        self.at_exec(pid)
    }
}

fn why_late() -> String {
    format!("it was not at its entry point {} s after its exec", PATIENCE.as_secs())
}

/// The obstacle by name if it is a known one; otherwise the kernel's error.
fn why_unparked(pid: u32, error: &io::Error) -> String {
    match permission::check_program(pid) {
        Err(named @ TargetError::WrongClass { .. }) => named.to_string(),
        _ => format!("it cannot be held at its entry point: {error}"),
    }
}

fn tgid(tid: u32) -> Option<u32> {
    let status = procfs::read(format!("/proc/{tid}/status")).ok()?;
    Some(ThreadStatus::parse(&status).tgid).filter(|&tgid| tgid != 0)
}
