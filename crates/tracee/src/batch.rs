//! One batch of work on a seized process, in a thread of its own. When that thread ends, the kernel detaches
//! from all tracees.
//!
//! Input: a process. Output: a thread that may stop the process, make calls in it, and receives every event
//! of it. Invariants: TGT-2; neither seizing nor detaching stops a thread; only threads that this thread
//! traces are waited for. The stops themselves are served in `serve`, the thread for calls is chosen in
//! `choose`.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::TargetError;
use crate::gadget::Gadgets;
use crate::permission;
use crate::process::Process;
use crate::remote_options::RemoteReport;
use crate::seizing::Seizing;
use crate::status::InCall;
use crate::sys::own::thread_id;
use crate::sys::ptrace;

/// Which events a batch reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchOptions {
    /// Hold forked children at their first stop until [`Batch::release`]. Without this they are detached at
    /// once.
    pub hold_children: bool,
}

/// A signal action, as rt_sigaction takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handler {
    /// Address of the function; 0 for the default action, 1 for ignoring the signal.
    pub handler: u64,
    /// SA_ flags.
    pub flags: u64,
    /// Restorer address.
    pub restorer: u64,
    /// Mask, signal `n` at bit `n − 1`.
    pub mask: u64,
}

impl Handler {
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.handler, self.flags, self.restorer, self.mask];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Self {
        let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |w, &b| w << 8 | u64::from(b));
        Self { handler: word(0), flags: word(8), restorer: word(16), mask: word(24) }
    }
}

/// An event that the caller of a batch must handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A child process was born and is held at its first stop, if children are held.
    Forked {
        /// The process that forked.
        parent: u32,
        /// The child's pid.
        child: u32,
        /// It runs in its parent's memory (vfork, clone with CLONE_VM), so there is nothing to patch. Such a
        /// child is never held.
        shares_memory: bool,
    },
    /// A process runs another program now; nothing of ours is left in it.
    Exec {
        /// Its pid.
        pid: u32,
    },
    /// A process has ended, with its wait status.
    Exited {
        /// Its pid.
        pid: u32,
        /// The status as `wait` gives it.
        status: i32,
    },
}

/// What one call of [`Batch::serve`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Guard traps after which the thread was sent on.
    pub guards: u32,
    /// Signals that were passed on.
    pub signals: u32,
    /// Births of threads.
    pub threads: u32,
}

/// Totals of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchReport {
    /// Guard traps after which the thread was sent on.
    pub guards: u64,
    /// Guard traps after which a reset SIGTRAP action and mask were put back.
    pub dispositions_restored: u64,
    /// Signals that were passed on.
    pub signals: u64,
    /// Threads seized.
    pub threads: u64,
    /// Calls that returned EINTR to the program because of the tracer. 0 unless a repair was impossible.
    pub interrupted_syscalls: u64,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u64,
    /// Longest time that a thread was stopped, from our order to its release.
    pub longest_stop: Duration,
    /// Time for which threads were stopped for remote calls, in total.
    pub remote_stop: Duration,
}

/// A thread that we trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracee {
    /// Its process.
    pub(crate) tgid: u32,
    /// It is to stop, and is held when it does.
    pub(crate) wanted: bool,
    /// `Some` while it is held; true if it lies in a group-stop.
    pub(crate) held: Option<bool>,
    /// The call that it was in before it was ordered to stop, where the kernel does not show that afterwards.
    pub(crate) before: Option<InCall>,
}

/// A seized process.
#[derive(Debug)]
pub struct Batch<'p> {
    pub(crate) process: &'p Process,
    pub(crate) options: BatchOptions,
    pub(crate) tracees: HashMap<u32, Tracee>,
    pub(crate) events: Vec<Event>,
    pub(crate) report: BatchReport,
    pub(crate) trap_handler: Option<Handler>,
    pub(crate) illegal_handler: Option<Handler>,
    pub(crate) gadgets: Option<Gadgets>,
    /// All threads are to be stopped, those that are born now too.
    pub(crate) stopping: bool,
    /// Why the process is gone.
    pub(crate) gone: Option<&'static str>,
    /// A dead child of our own, left for its parent to reap.
    pub(crate) unreaped: Option<u32>,
}

impl<'p> Batch<'p> {
    /// Seizes every thread without stopping any, and runs `body` in a thread of its own. That thread's end
    /// detaches. Returns when the kernel has detached from all threads.
    ///
    /// # Errors
    /// When the process cannot be seized; `body`'s own result is inside.
    pub fn run<T: Send>(
        process: &'p Process,
        options: BatchOptions,
        body: impl FnOnce(&mut Batch<'_>) -> T + Send,
    ) -> Result<T, TargetError> {
        let seizing = &Seizing::default();
        let work = move || {
            let own = std::fs::read_link("/proc/thread-self");
            (own, Batch::seize(process, options, seizing).map(|mut batch| body(&mut batch)))
        };
        let outcome = std::thread::scope(|scope| {
            let spawned =
                std::thread::Builder::new().name("trapline-batch".into()).spawn_scoped(scope, work)?;
            seizing.attend(process.pid());
            Ok(spawned.join())
        });
        match outcome {
            Ok(Ok((own, result))) => {
                if let Ok(own) = own {
                    until_gone(&Path::new("/proc").join(own));
                }
                result
            }
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => Err(TargetError::system(process.pid(), "start a tracer thread", error)),
        }
    }
    fn seize(process: &'p Process, options: BatchOptions, seizing: &Seizing) -> Result<Self, TargetError> {
        let _over = seizing.until_dropped();
        let mut batch = Self {
            process,
            options,
            tracees: HashMap::new(),
            events: Vec::new(),
            report: BatchReport::default(),
            trap_handler: None,
            illegal_handler: None,
            gadgets: None,
            stopping: false,
            gone: None,
            unreaped: None,
        };
        if !process.alive() {
            return Err(process.gone("it ended"));
        }
        let mut refused = HashMap::new();
        while batch.seize_more(seizing, &mut refused)? {}
        if batch.tracees.is_empty() {
            return Err(process.gone("it ended"));
        }
        Ok(batch)
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
            match seizing.seize(tid, &mut self.tracees) {
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
    fn explain_unseized(&self, tid: u32, error: std::io::Error) -> Result<bool, TargetError> {
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
    pub(crate) fn adopt(&mut self, tid: u32, tgid: u32) -> &mut Tracee {
        let wanted = self.stopping && tgid == self.process.pid();
        self.report.threads += u64::from(tgid == self.process.pid() && !self.tracees.contains_key(&tid));
        self.tracees.entry(tid).or_insert(Tracee { tgid, wanted, held: None, before: None })
    }
    /// The process.
    #[must_use]
    pub const fn process(&self) -> &'p Process {
        self.process
    }
    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
    /// The threads of the process that are seized now.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        let pid = self.process.pid();
        let mut tids: Vec<u32> =
            self.tracees.iter().filter(|(_, t)| t.tgid == pid).map(|(&tid, _)| tid).collect();
        tids.sort_unstable();
        tids
    }
    /// Lets a held child run on. With `keep` it stays seized, without it is detached.
    ///
    /// # Errors
    /// When the child is not held or is gone.
    pub fn release(&mut self, child: u32, keep: bool) -> Result<(), TargetError> {
        let fail = |e| TargetError::system(child, "let a forked child run", e);
        if keep {
            return self.let_run(child);
        }
        self.tracees.remove(&child);
        ptrace::detach(child).map_err(fail)
    }
    /// Sets the SIGTRAP action to put back if the kernel resets it, which it does when a guard is hit with
    /// SIGTRAP blocked.
    pub const fn set_trap_handler(&mut self, handler: Option<Handler>) {
        self.trap_handler = handler;
    }
    /// Sets the SIGILL action to put back in the same case.
    pub const fn set_illegal_handler(&mut self, handler: Option<Handler>) {
        self.illegal_handler = handler;
    }
    /// Sums so far.
    #[must_use]
    pub const fn report(&self) -> BatchReport {
        self.report
    }
    pub(crate) fn account(&mut self, remote: &RemoteReport) {
        self.report.interrupted_syscalls += u64::from(remote.interrupted);
        self.report.restarted_timeouts += u64::from(remote.restarted_timeout);
        self.report.remote_stop += remote.stopped;
        self.report.longest_stop = self.report.longest_stop.max(remote.stopped);
    }
    /// Returns an error if the process is gone.
    pub(crate) fn check_gone(&self) -> Result<(), TargetError> {
        self.gone.map_or(Ok(()), |how| Err(self.process.gone(how)))
    }
}

/// Waits until the kernel has finished with a thread of ours, and has so detached from its tracees. Its entry
/// in /proc stays until then. That takes microseconds. A join returns earlier, as soon as the thread's memory
/// is no longer needed.
pub(crate) fn until_gone(task: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while task.exists() && Instant::now() < deadline {
        std::thread::yield_now();
    }
}
