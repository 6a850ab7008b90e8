//! What to trace, and how, before anything is done: targets, probes, wishes.
//!
//! In: what a program's user wants. Out: a running [`Session`]. Does not: touch a process.

use std::time::Duration;

use trapline_image::ProbeSpec;
use trapline_patch::{Durations, Options};
use trapline_target::kernel::UprobeMulti;

use crate::error::Error;
use crate::report::By;
use crate::session::Session;
use crate::spread::Steps;
use crate::target::Target;
use crate::traced::{Aim, Wishes};

/// What to trace, and how.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    pub(crate) target: Target,
    pub(crate) specs: Vec<ProbeSpec>,
    pub(crate) strict: bool,
    faults_are_fatal: bool,
    pub(crate) follow: bool,
    pub(crate) by: Option<By>,
    outermost: bool,
    ring: Option<u32>,
    pub(crate) min: Duration,
    pub(crate) steps: Option<Steps>,
}

impl Builder {
    /// Traces this process; may be called more than once.
    #[must_use]
    pub fn pid(mut self, pid: u32) -> Self {
        match &mut self.target {
            Target::Running { pids, .. } => pids.push(pid),
            other => *other = Target::Running { pids: vec![pid], names: Vec::new() },
        }
        self
    }
    /// Traces these processes.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }
    /// Adds a probe, in bpftrace's words: `libssl:SSL_*`, `uretprobe:/bin/x:f`, `usdt:libc:libc:setjmp`.
    ///
    /// # Errors
    /// [`Error::Spec`] when it cannot be read.
    pub fn probe(mut self, text: &str) -> Result<Self, Error> {
        self.specs.push(text.parse()?);
        Ok(self)
    }
    /// Adds probes that were read before.
    #[must_use]
    pub fn probes(mut self, specs: impl IntoIterator<Item = ProbeSpec>) -> Self {
        self.specs.extend(specs);
        self
    }
    /// Stops all threads while code changes.
    #[must_use]
    pub const fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }
    /// The targets' SIGSEGV and SIGBUS handlers only report and end them, and look no address up: instructions that may fault
    /// may be moved. Not true of the JVM, Go, .NET, or what runs WebAssembly.
    #[must_use]
    pub const fn faults_are_fatal(mut self, fatal: bool) -> Self {
        self.faults_are_fatal = fatal;
        self
    }
    /// Follows fork and exec.
    #[must_use]
    pub const fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }
    /// Splits hits.
    #[must_use]
    pub const fn by(mut self, by: Option<By>) -> Self {
        self.by = by;
        self
    }
    /// Of recursive calls, times only the outermost.
    #[must_use]
    pub const fn outermost(mut self, outermost: bool) -> Self {
        self.outermost = outermost;
        self
    }
    /// Times only calls that take at least this long.
    #[must_use]
    pub const fn at_least(mut self, min: Duration) -> Self {
        self.min = min;
        self
    }
    /// Durations fall into equal steps, in nanoseconds, where whole ticks of the clock come close to them; else, and without
    /// this, into 16 buckets to an octave. Percentiles are then as coarse as the steps.
    #[must_use]
    pub const fn steps(mut self, min: u64, max: u64, step: u64) -> Self {
        self.steps = Some(Steps { min, max, step });
        self
    }
    /// Bytes of each CPU's ring of records, rounded up to a power of two between 4 KiB and 1 GiB; 4 MiB without this. Only what is
    /// written to takes memory.
    #[must_use]
    pub const fn ring(mut self, bytes: u32) -> Self {
        let bytes = if bytes < 4096 { 4096 } else { bytes };
        self.ring = Some(if bytes > 1 << 30 { 1 << 30 } else { bytes.next_power_of_two() });
        self
    }
    /// Starts counting.
    ///
    /// # Errors
    /// When no process can be traced or nothing can be probed; nothing is left behind.
    pub fn count(self) -> Result<Session, Error> {
        Session::start(self, Aim::Count)
    }
    /// Starts timing.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn latency(self) -> Result<Session, Error> {
        Session::start(self, Aim::Time)
    }
    /// Starts recording each hit: with the first `arguments` integer arguments of a function (six at most), and with `returns` what
    /// it returned and when. [`Session::calls`] tells them.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn record(self, arguments: u8, returns: bool) -> Result<Session, Error> {
        Session::start(self, Aim::Record { values: arguments.min(6), returns })
    }
    pub(crate) fn wishes(&self, aim: Aim) -> Wishes {
        let kernel_allowed = UprobeMulti::available().is_ok();
        let by_thread = aim == Aim::Count && matches!(self.by, Some(By::Thread | By::ThreadName));
        let options = Options {
            strict: self.strict,
            faults_are_fatal: self.faults_are_fatal,
            kernel_allowed,
            by_thread,
            ..Options::default()
        };
        let options = Options { ring: self.ring.unwrap_or(options.ring), ..options };
        let durations = Durations { outermost: self.outermost, ..Durations::default() };
        Wishes { specs: self.specs.clone(), aim, options, durations, steps: None }
    }
}
