//! Describes a session before anything is done: targets, probes, options.
//!
//! In: the user's choices. Out: a [`Builder`], of which a session or a listing is made ([`start`]). Does not: touch a
//! process.

mod start;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use trapline_image::ProbeSpec;
use trapline_plan::Floats;

use crate::error::Error;
use crate::filter::Filter;
use crate::form::Returns;
use crate::histogram::LinearBuckets;
use crate::maps::{MapTable, Namer};
use crate::progress::{OnProgress, Step};
use crate::report::By;
use crate::session::Session;
use crate::session_request::{CompactValues, LeftOut, ProbeAction};
use crate::target::Target;

/// Description of a session: what to trace, and how. Begin with [`Session::builder`]; end with what is to
/// happen at each hit: [`count`](Self::count), [`latency`](Self::latency), [`record`](Self::record),
/// [`tally`](Self::tally) or [`stacks`](Self::stacks).
#[derive(Clone, Debug, Default)]
pub struct Builder {
    target: Target,
    specs: Vec<ProbeSpec>,
    strict: bool,
    faults_are_fatal: bool,
    kernel_uprobes: bool,
    follow: bool,
    wait: bool,
    by: Option<By>,
    outermost: bool,
    returns: Returns,
    maxactive: Option<u32>,
    ring: Option<u32>,
    compact: bool,
    lossless: bool,
    values: Vec<CompactValues>,
    libcalls: bool,
    left_out: LeftOut,
    budget: Option<f64>,
    filters: Vec<Filter>,
    texts: Vec<u16>,
    floats: Vec<Floats>,
    ended: Vec<u16>,
    notes_code: bool,
    min: Duration,
    steps: Option<LinearBuckets>,
    maps: Vec<MapTable>,
    follows_threads: bool,
    namer: Option<Namer>,
    actions: Vec<ProbeAction>,
    debug_folders: Arc<[PathBuf]>,
    progress: OnProgress,
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
    /// Sets the target.
    #[must_use]
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }
    /// Adds a probe, in bpftrace's words: `libssl:SSL_*`, `uretprobe:/bin/x:f`, `usdt:libc:libc:setjmp`.
    ///
    /// # Errors
    /// [`Error::Spec`] if the text cannot be parsed.
    pub fn probe(mut self, text: &str) -> Result<Self, Error> {
        self.specs.push(text.parse()?);
        Ok(self)
    }
    /// Adds probes that are already parsed.
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
    /// Declares that the targets' SIGSEGV and SIGBUS handlers only report the fault and end the process, and
    /// look no address up. Then instructions that may fault can be moved. This is not true of the JVM, Go,
    /// .NET, or programs that run WebAssembly.
    #[must_use]
    pub const fn faults_are_fatal(mut self, fatal: bool) -> Self {
        self.faults_are_fatal = fatal;
        self
    }
    /// Counts by kernel uprobes where no jump fits. A hit there costs microseconds, and filters, records and
    /// durations are not to be had. Without this such sites are refused.
    #[must_use]
    pub const fn kernel_uprobes(mut self, kernel_uprobes: bool) -> Self {
        self.kernel_uprobes = kernel_uprobes;
        self
    }
    /// Looks for separate debug information in these folders too, before the usual ones. A relative one is meant from
    /// here, and from the folder of each file.
    #[must_use]
    pub fn debug_folders(mut self, folders: &[PathBuf]) -> Self {
        self.debug_folders = folders.into();
        self
    }
    /// Calls this at each step of what comes before a session, a listing or prototypes are there. Other threads may call it.
    #[must_use]
    pub fn on_progress(mut self, callback: impl Fn(Step<'_>) + Send + Sync + 'static) -> Self {
        self.progress = OnProgress::new(callback);
        self
    }
    /// Follows fork and exec.
    #[must_use]
    pub const fn follow(mut self, follow: bool) -> Self {
        self.follow = follow;
        self
    }
    /// Waits for functions that nobody has yet; no probe has to find anything. Following, and [`Target::All`], do so
    /// by themselves.
    #[must_use]
    pub const fn wait(mut self, wait: bool) -> Self {
        self.wait = wait;
        self
    }
    /// Groups hits.
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
    /// Selects how the ends of calls are seen, if calls are timed, or recorded or aggregated with their
    /// returns. Where return addresses are replaced, every call is counted, recursive ones included. So
    /// [`Returns::Auto`] replaces none where only outermost calls are timed.
    #[must_use]
    pub const fn returns(mut self, returns: Returns) -> Self {
        self.returns = returns;
        self
    }
    /// Sets how many calls can have their return address replaced at a time, in all threads of a process: 64
    /// to [`Returns::MOST_ACTIVE`], rounded up to a power of two; 16,384 by default. Calls beyond it run
    /// unprobed, and count as missed. Each call takes 97 bytes of the process' memory.
    #[must_use]
    pub const fn maxactive(mut self, calls: Option<u32>) -> Self {
        self.maxactive = calls;
        self
    }
    /// Times only calls that take at least this long.
    #[must_use]
    pub const fn at_least(mut self, min: Duration) -> Self {
        self.min = min;
        self
    }
    /// Uses equal steps for durations, in nanoseconds, if whole ticks of the clock come close to them. If
    /// they do not, and by default, there are 16 buckets to an octave. Percentiles are then as coarse as the
    /// steps.
    #[must_use]
    pub const fn steps(mut self, min: u64, max: u64, step: u64) -> Self {
        self.steps = Some(LinearBuckets { min, max, step });
        self
    }
    /// Sets the bytes of each CPU's ring of records, rounded up to a power of two between 4 KiB and 1 GiB; by
    /// default 4 MiB, and 32 MiB for stacks. Where threads have no rseq areas, each CPU has two rings of half
    /// that size. Only what is written to takes memory.
    #[must_use]
    pub const fn ring(mut self, bytes: u32) -> Self {
        let bytes = if bytes < 4096 { 4096 } else { bytes };
        self.ring = Some(if bytes > 1 << 30 { 1 << 30 } else { bytes.next_power_of_two() });
        self
    }
    /// Records, aggregates or counts only hits that pass. The first filter is for the first probe, and so on;
    /// probes beyond the last filter pass all hits. A filter that could not be decided is [`Error::Filter`]:
    /// a counted entry knows arguments and the thread, a counted return knows the returned value and the
    /// thread. Timed calls are not filtered.
    #[must_use]
    pub fn filters(mut self, filters: Vec<Filter>) -> Self {
        self.filters = filters;
        self
    }
    /// Selects arguments that point to text; records hold its first
    /// [`TEXT_BYTES`](crate::calls::TEXT_BYTES). Bit `n` is for argument `n`, the first word is for the first
    /// probe, and so on. The target first reads a page by a system call, and then loads from it directly for a
    /// while.
    #[must_use]
    pub fn texts(mut self, texts: Vec<u16>) -> Self {
        self.texts = texts;
        self
    }
    /// Marks those of these texts that end at a zero byte. Go's texts do not, and are refused there.
    #[must_use]
    pub fn ended_texts(mut self, ended: Vec<u16>) -> Self {
        self.ended = ended;
        self
    }
    /// Notes where each process has code: [`Session::take_code`](crate::Session::take_code).
    #[must_use]
    pub const fn notes_code(mut self, notes: bool) -> Self {
        self.notes_code = notes;
        self
    }
    /// Selects floats that records hold, the first entry for the first probe and so on:
    /// [`Call::floats`](crate::Call::floats).
    #[must_use]
    pub fn floats(mut self, floats: Vec<Floats>) -> Self {
        self.floats = floats;
        self
    }
    /// Lets a session that records run programs at some probes instead ([`Filter::runs`]). The first action is for
    /// the first probe, and so on; probes beyond record. Each such probe has sites of its own, also where several
    /// mean one function: [`Site::slot`](crate::Site::slot) says which one. One function's returns may be recorded,
    /// or run one probe's program.
    #[must_use]
    pub fn actions(mut self, actions: Vec<ProbeAction>) -> Self {
        self.actions = actions;
        self
    }
    /// Gives the names of places whose hits run programs their numbers.
    #[must_use]
    pub fn names(mut self, namer: Namer) -> Self {
        self.namer = Some(namer);
        self
    }
    /// Reads the kernel's records about threads, so that names of threads that have ended are known. Takes descriptors of a process.
    #[must_use]
    pub const fn follow_threads(mut self, follows: bool) -> Self {
        self.follows_threads = follows;
        self
    }
    /// Sets the maps that hits' programs write ([`Filter::runs`]); [`Session::maps`] reads them.
    #[must_use]
    pub fn maps(mut self, maps: Vec<MapTable>) -> Self {
        self.maps = maps;
        self
    }
    /// Probes no functions with fewer bytes of code than that, and none that these specifications mean, though probes mean them.
    #[must_use]
    pub fn leave_out(mut self, least_bytes: u64, without: Vec<ProbeSpec>) -> Self {
        self.left_out = LeftOut { least_bytes, without };
        self
    }
    /// Lets [`record_words`](Self::record_words) cost no more than this share of each process' time, as far as that can be: functions
    /// that call no recorded one are taken out while it runs, those that are called most first. [`Finished::thinned`](crate::Finished::thinned)
    /// says which.
    #[must_use]
    pub const fn budget(mut self, share: Option<f64>) -> Self {
        self.budget = share;
        self
    }
    /// Selects what [`record_words`](Self::record_words) records besides: the first entry is for the first probe, and so on. Of two
    /// probes that mean one function, the first counts. [`texts`](Self::texts), [`floats`](Self::floats) and fields of
    /// [`filters`](Self::filters) are recorded, too.
    #[must_use]
    pub fn values(mut self, values: Vec<CompactValues>) -> Self {
        self.values = values;
        self
    }
    /// Probes the functions of libraries that a program imports, too. A recording of words hands on those of their calls that
    /// are not within another one of them: calls from the program.
    #[must_use]
    pub const fn libcalls(mut self, libcalls: bool) -> Self {
        self.libcalls = libcalls;
        self
    }
}

impl Session {
    /// Starts the description of a session.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
}
