//! One batch of work on a seized process, in a thread of its own; when the thread ends the kernel lets everything go.
//!
//! Input: a process. Output: a thread that may stop, call and be told of everything that happens in it. Invariants:
//! TGT-2; no thread is stopped by seizing or by letting go; only threads that this thread traces are waited for.
//! The stops themselves are served in `serve`, the choice of a thread for calls is in `choose`.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::TargetError;
use crate::gadget::Gadgets;
use crate::permission;
use crate::process::Process;
use crate::remote::RemoteReport;
use crate::seizing::Seizing;
use crate::status::InCall;
use crate::sys::clock::thread_id;
use crate::sys::ptrace;

/// What to listen for.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchOptions {
    /// Hold forked children at their first stop until [`Batch::release`] (else they are let go at once).
    pub hold_children: bool,
}

/// A signal action, as rt_sigaction takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handler {
    /// Function address, 0 for the default, 1 for ignore.
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

/// Something that a caller must know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A child process was born and is held at its first stop, if children are held.
    Forked {
        /// Who forked.
        parent: u32,
        /// The child's pid.
        child: u32,
        /// It runs in its parent's memory (vfork, clone with CLONE_VM): nothing to patch. Never held.
        shares_memory: bool,
    },
    /// A process runs another program now; nothing of ours is in it any more.
    Exec {
        /// Its pid.
        pid: u32,
    },
    /// A process has ended, with its wait status.
    Exited {
        /// Its pid.
        pid: u32,
        /// As `wait` gives it.
        status: i32,
    },
}

/// What one [`Batch::serve`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Guard traps whose thread was sent on.
    pub guards: u32,
    /// Signals handed on.
    pub signals: u32,
    /// Births of threads.
    pub threads: u32,
}

/// Sums over a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchReport {
    /// Guard traps whose thread was sent on.
    pub guards: u64,
    /// Guard traps after which a reset SIGTRAP action and mask were put back.
    pub dispositions_restored: u64,
    /// Signals handed on.
    pub signals: u64,
    /// Threads seized.
    pub threads: u64,
    /// Calls that returned EINTR to the program because of us. 0 unless a repair was impossible.
    pub interrupted_syscalls: u64,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u64,
    /// Longest time that a thread was stopped, from our order to its release.
    pub longest_stop: Duration,
    /// Time that threads were stopped for remote calls, in all.
    pub remote_stop: Duration,
}

/// A thread that we trace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tracee {
    /// Its process.
    pub(crate) tgid: u32,
    /// Hold it when it stops for us.
    pub(crate) wanted: bool,
    /// It is held; true when it lies in a group-stop.
    pub(crate) held: Option<bool>,
    /// What call it was in before it was ordered to stop, where the kernel does not tell afterwards.
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
    /// Everybody is to be stopped, also who is born now.
    pub(crate) stopping: bool,
    /// Why the process is no more.
    pub(crate) gone: Option<&'static str>,
    /// A dead child of our own, left for its parent to reap.
    pub(crate) unreaped: Option<u32>,
}

impl<'p> Batch<'p> {
    /// Seizes every thread without stopping any, runs `body` in a thread of its own, and lets go by ending it. Returns
    /// when the kernel has let go.
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
    /// Seizes the threads that are not ours yet; says whether to look again. A thread that is refused is tried again before the reason is looked
    /// for: a dead main thread's number passes to the thread that executes a program, and some programs do that all the time.
    fn seize_more(
        &mut self,
        seizing: &Seizing,
        refused: &mut HashMap<u32, u32>,
    ) -> Result<bool, TargetError> {
        /// Execs that each fall between the kernel's refusal and our next try.
        const TRIES: u32 = 16;
        let pid = self.process.pid();
        let mut any = false;
        for tid in self.process.threads()? {
            if self.tracees.contains_key(&tid) {
                continue;
            }
            let (seized, reaped) = seizing.seize(tid);
            self.tracees.retain(|tid, _| !reaped.contains(tid));
            match seized {
                Ok(()) => {
                    any = true;
                    self.adopt(tid, pid);
                }
                Err(_) if *refused.entry(tid).or_default() < TRIES => {
                    *refused.entry(tid).or_default() += 1;
                    any = true;
                }
                Err(error) => any |= self.explain_unseized(tid, error)?,
            }
        }
        Ok(any)
    }
    /// Says whether to look again.
    fn explain_unseized(&self, tid: u32, error: std::io::Error) -> Result<bool, TargetError> {
        let Ok(status) = self.process.thread_status(tid) else { return Ok(false) };
        // A dying thread cannot be seized; one born from a thread that we have was seized by the kernel already.
        if status.tracer == thread_id() || matches!(status.state, 'Z' | 'X') {
            return Ok(false);
        }
        // Another thread of ours, which has ended its work and has not let go yet.
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
    /// Threads of the process now seized.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        let pid = self.process.pid();
        let mut tids: Vec<u32> =
            self.tracees.iter().filter(|(_, t)| t.tgid == pid).map(|(&tid, _)| tid).collect();
        tids.sort_unstable();
        tids
    }
    /// Lets a held child run on; `keep` leaves it seized, else it is detached.
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
    /// The SIGTRAP action to put back, should the kernel reset it because a guard was hit with SIGTRAP blocked.
    pub const fn set_trap_handler(&mut self, handler: Option<Handler>) {
        self.trap_handler = handler;
    }
    /// The same for SIGILL.
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
    /// The error to give when the process is no more.
    pub(crate) fn check_gone(&self) -> Result<(), TargetError> {
        self.gone.map_or(Ok(()), |how| Err(self.process.gone(how)))
    }
}

/// Waits until the kernel has finished with a thread of ours, and so has let its tracees go: its entry in /proc stays
/// until then. That takes microseconds. (Who joins a thread is woken earlier, when its memory is no longer needed.)
pub(crate) fn until_gone(task: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while task.exists() && Instant::now() < deadline {
        std::thread::yield_now();
    }
}
