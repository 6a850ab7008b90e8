//! Following processes through fork and exec.
//!
//! Input: processes to follow. Output: a [`Followed`] for each birth, exec and end. Invariants: TGT-10 a
//! process that executes a program is handed over parked at that program's entry point. No thread traces it
//! there, and it comes back by [`Follower::resume`]. TGT-11 when following ends, no process is left with a
//! breakpoint of ours. One thread does all the tracing. It takes each stop and lets the tracee go on at once,
//! signals included. Does not: stop a process by itself.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::TargetError;
use crate::living::{self, until_gone};
use crate::park::{EntryTrap, Parked};
use crate::permission;
use crate::seizing::Seizing;
use crate::status::ThreadStatus;
use crate::sys::ptrace::{self, EVENT_STOP};
use crate::sys::wait::{self, Stop};

/// How long the tracer sleeps when no tracee is stopped.
const REST: Duration = Duration::from_micros(300);
/// Time that a program may take from its exec to its entry point. After that, following ends without it.
const PATIENCE: Duration = Duration::from_secs(2);

/// What happened to a followed process.
#[derive(Debug, PartialEq, Eq)]
pub enum Followed {
    /// A process was born.
    Born {
        /// The process that forked.
        parent: u32,
        /// The child's pid.
        child: u32,
    },
    /// It executed another program and is parked at its entry point.
    AtEntry(Parked),
    /// It was parked, and ran on before it was resumed.
    Strayed {
        /// Its pid.
        pid: u32,
    },
    /// It executed another program and runs it, because it could not be held at the entry point.
    Unparked {
        /// Its pid.
        pid: u32,
        /// Why it could not be held.
        why: String,
    },
    /// It ended.
    Exited {
        /// Its pid.
        pid: u32,
    },
}

enum Order {
    Follow(u32),
    Resume(Parked),
    Stop,
}

/// A thread that follows processes.
#[derive(Debug)]
pub struct Follower {
    orders: Sender<Order>,
    events: Receiver<Followed>,
    answers: Receiver<io::Result<()>>,
    /// The thread that traces. It returns its entry in /proc, and the processes that it followed.
    thread: Option<JoinHandle<(io::Result<PathBuf>, Vec<u32>)>>,
}

impl Follower {
    /// Starts the thread. `child` is a process of our own. Its end is not reaped here but left for its
    /// parent.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(child: Option<u32>) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let (outbox, events) = channel();
        let (answer, answers) = channel();
        let work = move || {
            let tracer = Tracer { inbox, outbox, answer, child, tracees: HashMap::new() };
            (std::fs::read_link("/proc/thread-self"), tracer.run())
        };
        let thread = std::thread::Builder::new().name("trapline-follow".into()).spawn(work)?;
        Ok(Self { orders, events, answers, thread: Some(thread) })
    }
    fn order(&self, order: Order) -> io::Result<()> {
        let dead = || io::Error::other("the following thread has ended");
        self.orders.send(order).map_err(|_| dead())?;
        self.answers.recv().map_err(|_| dead())?
    }
    /// Follows a running process.
    ///
    /// # Errors
    /// When it cannot be seized.
    pub fn follow(&self, pid: u32) -> io::Result<()> {
        self.order(Order::Follow(pid))
    }
    /// Lets a parked process run its program, followed.
    ///
    /// # Errors
    /// When it is gone.
    pub fn resume(&self, parked: Parked) -> io::Result<()> {
        self.order(Order::Resume(parked))
    }
    /// What happened since the last call.
    #[must_use]
    pub fn events(&self) -> Vec<Followed> {
        self.events.try_iter().collect()
    }
    /// Ends following. Returns the processes that were followed, once the kernel has detached from them, and
    /// the remaining [`Self::events`]. A process that is parked stays parked.
    #[must_use]
    pub fn stop(mut self) -> (Vec<u32>, Vec<Followed>) {
        let pids = self.end();
        (pids, self.events())
    }
    fn end(&mut self) -> Vec<u32> {
        // If the thread has ended already, the order goes nowhere.
        drop(self.orders.send(Order::Stop));
        let Some((own, pids)) = self.thread.take().and_then(|thread| thread.join().ok()) else {
            return Vec::new();
        };
        if let Ok(own) = own {
            until_gone(&Path::new("/proc").join(own));
        }
        pids
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.end();
        for event in self.events.try_iter() {
            if let Followed::AtEntry(parked) = event {
                // It is gone if it cannot be released.
                drop(parked.release());
            }
        }
    }
}

#[derive(Debug)]
struct Tracee {
    tgid: u32,
    trap: Option<EntryTrap>,
}

struct Tracer {
    inbox: Receiver<Order>,
    outbox: Sender<Followed>,
    answer: Sender<io::Result<()>>,
    child: Option<u32>,
    tracees: HashMap<u32, Tracee>,
}

impl Tracer {
    fn run(mut self) -> Vec<u32> {
        loop {
            let rest = if self.serve() { Duration::ZERO } else { REST };
            match self.inbox.recv_timeout(rest) {
                Ok(Order::Follow(pid)) => {
                    let done = self.seize(pid);
                    drop(self.answer.send(done));
                }
                Ok(Order::Resume(parked)) => {
                    let done = self.adopt(parked);
                    drop(self.answer.send(done));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
        }
    }
    /// Waits for programs that are on the way to their entry points, and removes the breakpoints of those
    /// that do not get there.
    fn finish(mut self) -> Vec<u32> {
        let deadline = Instant::now() + PATIENCE;
        while self.tracees.values().any(|tracee| tracee.trap.is_some()) && Instant::now() < deadline {
            if !self.serve() {
                std::thread::sleep(REST);
            }
        }
        let waiting = self.tracees.iter_mut().filter_map(|(&tid, tracee)| Some((tid, tracee.trap.take()?)));
        for (tid, trap) in waiting {
            // If it is gone, so is the breakpoint.
            drop(trap.clear(tid));
            let why = format!("it was not at its entry point {} s after its exec", PATIENCE.as_secs());
            drop(self.outbox.send(Followed::Unparked { pid: tid, why }));
        }
        let pids: BTreeSet<u32> = self.tracees.values().map(|tracee| tracee.tgid).collect();
        pids.into_iter().collect()
    }
    fn seize(&mut self, pid: u32) -> io::Result<()> {
        let seizing = &Seizing::default();
        std::thread::scope(|scope| {
            let over = seizing.until_dropped();
            let attendant = std::thread::Builder::new().name("trapline-seizing".into());
            attendant.spawn_scoped(scope, || seizing.attend(pid))?;
            let done = self.seize_all(pid, seizing);
            drop(over);
            done
        })
    }
    fn seize_all(&mut self, pid: u32, seizing: &Seizing) -> io::Result<()> {
        let mut first = None;
        loop {
            let mut any = false;
            for tid in living::threads(pid)? {
                match seizing.seize(tid, &mut self.tracees) {
                    None => {}
                    Some(Ok(())) => {
                        any = true;
                        self.tracees.insert(tid, Tracee { tgid: pid, trap: None });
                    }
                    Some(Err(error)) => first = first.or(Some(error)),
                }
            }
            if !any {
                break;
            }
        }
        let ours = self.tracees.values().any(|tracee| tracee.tgid == pid);
        if ours { Ok(()) } else { Err(first.unwrap_or_else(|| io::Error::other("it has no threads"))) }
    }
    fn adopt(&mut self, mut parked: Parked) -> io::Result<()> {
        let pid = parked.pid();
        if !parked.seize()? {
            self.emit(Followed::Strayed { pid });
        }
        self.tracees.insert(pid, Tracee { tgid: pid, trap: None });
        ptrace::cont(pid, 0)
    }
    /// Serves all stops that wait; returns whether there were any.
    fn serve(&mut self) -> bool {
        let tids: Vec<u32> = self.tracees.keys().copied().collect();
        let mut any = false;
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
    fn answer_stop(&mut self, stop: Stop) -> io::Result<()> {
        let tid = stop.tid();
        if let Stop::Exit { .. } = stop {
            let tracee = self.tracees.remove(&tid);
            if tracee.is_some_and(|tracee| tracee.tgid == tid) {
                self.emit(Followed::Exited { pid: tid });
            }
            return if self.child == Some(tid) { Ok(()) } else { wait::take(tid).map(drop) };
        }
        wait::take(tid)?;
        match stop {
            Stop::Event { event: EVENT_STOP, signal, .. } if signal != libc::SIGTRAP => ptrace::listen(tid),
            Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. } => self.at_exec(tid),
            Stop::Event {
                event: libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE,
                ..
            } => self.at_birth(tid),
            Stop::Signal { signal, .. } => {
                let trap = self.tracees.get_mut(&tid).map(|tracee| &mut tracee.trap);
                match trap.and_then(|trap| trap.take_if(|trap| trap.is_hit(tid, signal))) {
                    Some(trap) => self.at_entry(tid, trap),
                    None => ptrace::cont(tid, signal),
                }
            }
            _ => ptrace::cont(tid, 0),
        }
    }
    fn at_exec(&mut self, tid: u32) -> io::Result<()> {
        // Threads other than the one that executed are gone; it has the leader's id now.
        self.tracees.retain(|_, tracee| tracee.tgid != tid);
        match EntryTrap::set(tid) {
            Ok(trap) if trap.is_there() => self.at_entry(tid, trap),
            Ok(trap) => {
                self.tracees.insert(tid, Tracee { tgid: tid, trap: Some(trap) });
                ptrace::cont(tid, 0)
            }
            Err(error) => {
                // A program that cannot be read (another class, another user) runs on, followed and not probed.
                self.emit(Followed::Unparked { pid: tid, why: why_unparked(tid, &error) });
                self.tracees.insert(tid, Tracee { tgid: tid, trap: None });
                ptrace::cont(tid, 0)
            }
        }
    }
    fn at_entry(&mut self, tid: u32, trap: EntryTrap) -> io::Result<()> {
        self.tracees.remove(&tid);
        let parked = trap.park(tid)?;
        self.emit(Followed::AtEntry(parked));
        Ok(())
    }
    fn at_birth(&mut self, tid: u32) -> io::Result<()> {
        let child = ptrace::event_message(tid)? as u32;
        let tgid = tgid(child).unwrap_or(child);
        self.tracees.entry(child).or_insert(Tracee { tgid, trap: None });
        if tgid == child {
            let parent = self.tracees.get(&tid).map_or(tid, |tracee| tracee.tgid);
            self.emit(Followed::Born { parent, child });
        }
        ptrace::cont(tid, 0)
    }
    fn emit(&self, event: Followed) {
        // The other end is closed only while the follower is being dropped.
        drop(self.outbox.send(event));
    }
}

/// The obstacle by name if it is a known one; otherwise the kernel's error.
fn why_unparked(pid: u32, error: &io::Error) -> String {
    match permission::check_program(pid) {
        Err(named @ TargetError::WrongClass { .. }) => named.to_string(),
        _ => format!("it cannot be held at its entry point: {error}"),
    }
}

fn tgid(tid: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    Some(ThreadStatus::parse(&status).tgid).filter(|&tgid| tgid != 0)
}

#[cfg(test)]
mod tests {
    use super::{Followed, Follower};
    use crate::launch::Launched;
    use std::collections::HashMap;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn a_chain_of_programs_is_followed_and_ends_as_it_would() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "/bin/true; /bin/false; (exec /bin/sleep 0.01); exit 5"]);
        let (mut launched, parked) = Launched::start(command).expect("sh starts");
        let parked = parked.expect("it gets to its entry point");
        let follower = Follower::start(Some(launched.pid())).expect("a thread");
        follower.resume(parked).expect("it can be let go");
        let mut names = HashMap::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            for event in follower.events() {
                if let Followed::AtEntry(parked) = event {
                    let exe =
                        std::fs::read_link(format!("/proc/{}/exe", parked.pid())).expect("it is parked");
                    *names
                        .entry(exe.file_name().expect("a name").to_string_lossy().into_owned())
                        .or_insert(0) += 1;
                    follower.resume(parked).expect("it can be let go");
                }
            }
            if let Some(status) = launched.try_wait().expect("ours") {
                break status;
            }
            assert!(Instant::now() < deadline, "it hangs; seen {names:?}");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(status.code(), Some(5), "{status}; seen {names:?}");
        assert_eq!((names["true"], names["false"], names["sleep"]), (1, 1, 1));
    }
}
