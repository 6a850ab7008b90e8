//! Keeps a program alive when its machine reports a breakpoint's trap without the reason.
//!
//! In: processes whose debug registers are in use. Out: a [`LostTrap`] for each such trap. Invariants: TGT-19 a thread
//! whose trap came without a reason runs on as if there had been no trap. Does not: stop a thread, or keep any other
//! signal from it; cover a process after its exec, when its breakpoints are gone.
//!
//! # Why
//!
//! A breakpoint's trap sets a bit of DR6. Under KVM on Intel processors, hosts before Linux 6.14 may load an old value
//! into DR6 between the trap and the guest's reading of it, when they handle an exit on their fast path (CVE-2025-21839;
//! fixed by "KVM: x86: Load DR6 with guest value only before entering .vcpu_run() loop"). A guest's kernel that finds no
//! reason takes the trap for an instruction of the program (`int1`), and sends SIGTRAP. That ends the program, and the
//! access is in no ring. Measured here with a busy machine: 4 of a million traps.
//!
//! # Protocol
//!
//! One thread traces all threads of the processes. It lets each go on at once with its signal. Only a SIGTRAP is looked
//! at first. It is a lost trap if the kernel sent it for a trap without a reason, or with that of a debug register that is
//! not in use; if the thread does not step by itself; and if no `int1` is before it.
//!
//! | what happens | so |
//! |---|---|
//! | a thread is created | the kernel attaches it; it is listed at its first stop |
//! | a process is forked | with [`Forks::Covered`] it is covered too, else it is never attached |
//! | a thread executes another program | it is let go: breakpoints end with the program |
//! | the process is stopped by a signal | it stays stopped (PTRACE_LISTEN) |
//! | a child of our own ends | its end is left for the thread that waits for it |
//! | another tracer has the process | [`Shield::cover`] fails, and nothing is covered |
//! | this process dies | the kernel detaches from all, and closes the breakpoints too |
//!
//! **The end.** Breakpoints are closed first. A thread may have trapped before that and not have taken its signal yet. So
//! the thread serves on until each tracee has no SIGTRAP pending, and was then seen blocked, or has run for [`SHORT`];
//! at most for [`PATIENCE`].

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::SHIELD_NAME;
use crate::hurry::Hurry;
use crate::living::{self, until_gone};
use crate::numbers;
use crate::perf::monotonic_ns;
use crate::process::Process;
use crate::procfs;
use crate::regs;
use crate::seizing::Seizing;
use crate::status::{InCall, ThreadStatus};
use crate::sys::own_traps;
use crate::sys::ptrace::{self, EVENT_STOP};
use crate::sys::wait::{self, Stop};

/// How long the thread sleeps when no tracee is stopped.
const REST: Duration = Duration::from_micros(300);
/// Running time in which a thread takes a signal that it has got.
const SHORT: Duration = Duration::from_millis(1);
/// Limit for the end.
const PATIENCE: Duration = Duration::from_millis(100);

/// A trap without a reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostTrap {
    /// The process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// When it was found, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// User registers, in the order of [`USER_REGS`](crate::perf::USER_REGS).
    pub regs: Vec<u64>,
}

/// Whether forked processes are covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forks {
    /// They have the breakpoints too.
    Covered,
    /// They have none.
    Left,
}

#[derive(Debug)]
enum Order {
    Cover(u32),
    Stop,
}

/// The thread that traces. Dropping it detaches from all.
#[derive(Debug)]
pub struct Shield {
    orders: Sender<Order>,
    answers: Receiver<io::Result<()>>,
    lost: Receiver<LostTrap>,
    thread: Option<JoinHandle<io::Result<std::path::PathBuf>>>,
}

impl Shield {
    /// Whether this machine may lose a trap's reason, as far as a guest can know it.
    #[must_use]
    pub fn is_needed() -> bool {
        numbers::may_lose_traps()
    }
    /// Runs code whose breakpoints are in this process, which no thread of its own can trace. `None` if it may not be done:
    /// a lost trap would reach a handler of this process.
    pub fn over_own<R>(code: impl FnOnce() -> R) -> Option<R> {
        if Self::is_needed() { own_traps::survived(code) } else { Some(code()) }
    }
    /// Starts the thread, which covers nothing yet.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(forks: Forks) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let (outbox, lost) = channel();
        let (answer, answers) = channel();
        let work = move || {
            Hurry::always();
            Keeper { inbox, outbox, answer, forks, tracees: HashMap::new(), left: HashSet::new() }.run();
            std::fs::read_link("/proc/thread-self")
        };
        let thread = std::thread::Builder::new().name(SHIELD_NAME.into()).spawn(work)?;
        Ok(Self { orders, answers, lost, thread: Some(thread) })
    }
    /// Covers all threads of a process.
    ///
    /// # Errors
    /// When it cannot be traced: it is our own, another tracer has it, or it is not permitted.
    pub fn cover(&self, pid: u32) -> io::Result<()> {
        let dead = || io::Error::other("the tracing thread has ended");
        self.orders.send(Order::Cover(pid)).map_err(|_| dead())?;
        self.answers.recv().map_err(|_| dead())?
    }
    /// The lost traps since the last call.
    #[must_use]
    pub fn lost(&self) -> Vec<LostTrap> {
        self.lost.try_iter().collect()
    }
    /// Detaches from all, after breakpoints were closed; returns the remaining [`Self::lost`].
    pub fn stop(&mut self) -> Vec<LostTrap> {
        // If the thread has ended already, the order goes nowhere.
        drop(self.orders.send(Order::Stop));
        if let Some(Ok(Ok(own))) = self.thread.take().map(JoinHandle::join) {
            until_gone(&Path::new("/proc").join(own));
        }
        self.lost()
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        self.stop();
    }
}

/// State of the thread.
struct Keeper {
    inbox: Receiver<Order>,
    outbox: Sender<LostTrap>,
    answer: Sender<io::Result<()>>,
    forks: Forks,
    /// Threads, and their processes.
    tracees: HashMap<u32, u32>,
    /// Children of our own that have ended and are left for their parent.
    left: HashSet<u32>,
}

impl Keeper {
    fn run(mut self) {
        loop {
            let rest = if self.serve() { Duration::ZERO } else { REST };
            match self.inbox.recv_timeout(rest) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Cover(pid)) => {
                    let done = self.cover(pid);
                    drop(self.answer.send(done));
                }
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
        }
    }
    fn cover(&mut self, pid: u32) -> io::Result<()> {
        let seizing = match self.forks {
            Forks::Covered => Seizing::default(),
            Forks::Left => Seizing::for_threads(),
        };
        seizing.seize_all(pid, &mut self.tracees, || pid)
    }
    /// Serves all stops that wait; returns whether there were any.
    fn serve(&mut self) -> bool {
        let mut any = false;
        while let Ok(Some(stop)) = wait::peek_any() {
            // The end of our own child hides the stops behind it.
            if self.left.contains(&stop.tid()) {
                return self.serve_each() || any;
            }
            any = true;
            // A tracee that vanishes between its stop and the answer is seen as gone in the next round.
            drop(self.answer_stop(stop));
        }
        any
    }
    fn serve_each(&mut self) -> bool {
        self.left.retain(|&tid| wait::peek(tid).is_ok());
        let tids: Vec<u32> = self.tracees.keys().copied().collect();
        let mut any = false;
        for tid in tids {
            match wait::peek(tid) {
                Ok(None) => {}
                Ok(Some(stop)) => {
                    any = true;
                    drop(self.answer_stop(stop));
                }
                Err(_) => drop(self.tracees.remove(&tid)),
            }
        }
        any
    }
    fn answer_stop(&mut self, stop: Stop) -> io::Result<()> {
        let tid = stop.tid();
        if let Stop::Exit { .. } = stop {
            self.tracees.remove(&tid);
            if living::is_own_child(tid) {
                self.left.insert(tid);
                return Ok(());
            }
            return wait::take(tid).map(drop);
        }
        wait::take(tid)?;
        match stop {
            Stop::Event { event: EVENT_STOP, signal, .. } if signal != libc::SIGTRAP => {
                self.list(tid);
                ptrace::listen(tid)
            }
            Stop::Event { event: EVENT_STOP, .. } => {
                if self.list(tid) {
                    ptrace::cont(tid, 0)
                } else {
                    ptrace::detach(tid)
                }
            }
            Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. } => {
                // Its other threads are gone, and it has the number of the process now.
                self.tracees.retain(|_, of| *of != tid);
                ptrace::detach(tid)
            }
            Stop::Signal { signal: libc::SIGTRAP, .. } => match regs::of_lost_trap(tid) {
                Some(regs) => {
                    let pid = self.tracees.get(&tid).copied().unwrap_or(tid);
                    // The other end is closed only at the end.
                    drop(self.outbox.send(LostTrap { pid, tid, time_ns: monotonic_ns(), regs }));
                    ptrace::cont(tid, 0)
                }
                None => ptrace::cont(tid, libc::SIGTRAP),
            },
            Stop::Signal { signal, .. } => ptrace::cont(tid, signal),
            _ => ptrace::cont(tid, 0),
        }
    }
    /// Lists a thread at its first stop; returns whether it is covered.
    fn list(&mut self, tid: u32) -> bool {
        if self.tracees.contains_key(&tid) {
            return true;
        }
        let tgid = status(tid).tgid;
        let is_covered = tgid != tid || self.forks == Forks::Covered;
        if is_covered {
            self.tracees.insert(tid, tgid);
        }
        is_covered
    }
    /// Serves until no thread can have a lost trap's signal before it.
    fn finish(mut self) {
        let begun = Instant::now();
        let ran =
            |tid: u32, pid: u32| Process::open(pid).and_then(|process| process.run_time(tid)).unwrap_or(0);
        let mut open: HashMap<u32, (u32, u64)> =
            self.tracees.iter().map(|(&tid, &pid)| (tid, (pid, ran(tid, pid)))).collect();
        while !open.is_empty() && begun.elapsed() < PATIENCE {
            let any = self.serve();
            let traced = &self.tracees;
            open.retain(|tid, (pid, before)| {
                traced.contains_key(tid) && may_have_trapped(*pid, *tid, *before)
            });
            if !any {
                std::thread::sleep(REST);
            }
        }
        self.serve();
    }
}

/// Whether a thread may still have a SIGTRAP before it, for a breakpoint that is closed by now. `before`: nanoseconds that
/// it had run then.
fn may_have_trapped(pid: u32, tid: u32, before: u64) -> bool {
    let Ok(process) = Process::open(pid) else { return false };
    // Its state is looked at first: a thread that is blocked now has its signal pending, if it gets one.
    let settled = match process.in_call(tid) {
        Ok(InCall::Running) => {
            let ran = process.run_time(tid).map_or(0, |ns| ns.saturating_sub(before));
            Duration::from_nanos(ran) >= SHORT
        }
        Ok(_) | Err(_) => true,
    };
    let trap = 1 << (libc::SIGTRAP - 1);
    !settled || status(tid).pending & trap != 0
}

fn status(tid: u32) -> ThreadStatus {
    ThreadStatus::parse(&procfs::read(format!("/proc/{tid}/status")).unwrap_or_default())
}
