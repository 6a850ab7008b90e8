//! Requests to this crate, as values.
//!
//! In: nothing. Out: types for the caller to fill, and what a request needs of the process. Does not: look at
//! a process.

use std::time::Duration;

use trapline_plan::filter::TargetFilter;
use trapline_plan::{Action, ActionRequest, Buckets, CallInput, CodeMap, Image, KernelUprobes, Unwind};
use trapline_record::addr::Bias;
use trapline_record::{RemoteAddr, Svma};
use trapline_tracee::FileId;

/// One mapped file with the requests for it.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// The file that the mappings must show.
    pub file: FileId,
    /// Its contents.
    pub image: &'a Image,
    /// Difference between its live and its stated addresses.
    pub bias: Bias,
    /// Its branch targets.
    pub map: &'a CodeMap,
    /// The requests. `ActionRequest::probe` and `ActionRequest::latency` are distinct over all modules of a
    /// request.
    pub requests: &'a [ActionRequest],
    /// USDT semaphores to raise for those requests that get patches.
    pub semaphores: &'a [Semaphore],
}

/// A USDT semaphore: a `u16` that is not 0 while a tracer traces its USDT probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Semaphore {
    /// The probe of the request.
    pub probe: u32,
    /// Stated address of the word.
    pub at: Svma,
}

/// How careful a batch is, and what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Stop all threads while code changes.
    pub strict: bool,
    /// At detach, stop all threads once more to prove that no thread is in our code, and unmap it.
    pub free: bool,
    /// Whether sites that no jump reaches get kernel uprobes.
    pub kernel_uprobes: KernelUprobes,
    /// Count hits by thread; see `record::threads`.
    pub by_thread: bool,
    /// Bytes of each CPU's ring of records, if records are requested; a power of two.
    pub ring: u32,
    /// Records are words of compact rings (`record::calls`): which function, when, and by which thread, and nothing else.
    pub compact: bool,
    /// A thread that finds such a ring full waits for at most so many ticks of the clock (docs/design/recording.md); `None`
    /// if none waits.
    pub waits: Option<u64>,
    /// Number of return trampolines of the process, if some calls use them: at most this many calls are timed
    /// at once.
    pub trampolines: u32,
    /// If a function's returns are timed, recorded or aggregated, it gets return trampolines where it leaves
    /// by a jump to another function, or where its exits cannot be found or patched. Set only if unwinders
    /// can be informed.
    pub or_trampolines: bool,
    /// Functions always get return trampolines where their returns are recorded or aggregated.
    pub by_trampolines: bool,
    /// The process' SIGSEGV and SIGBUS handlers only end it: instructions that may fault may be moved.
    pub faults_are_fatal: bool,
    /// The process may begin to catch faults, and none of its threads can be held before that. So no
    /// instruction that may fault is moved.
    pub faults_may_be_caught: bool,
    /// The program's handlers of faults are to see the original addresses of faults in copies, so instructions
    /// that may fault may be moved. The requests hold [`Action::Deliver`] for each handler, and all holds at
    /// `sigaction`. If one of those cannot be patched, no such instruction is moved.
    pub faults_delivered: bool,
    /// No thread is created to help with the plan.
    pub alone: bool,
    /// A signal that ends the session is obeyed before code is changed: the batch fails then.
    pub obeys_signals: bool,
    /// How long to wait for a thread that can make our calls without its own call being disturbed.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            strict: false,
            free: false,
            kernel_uprobes: KernelUprobes::Unavailable,
            by_thread: false,
            ring: 4 << 20,
            compact: false,
            waits: None,
            trampolines: trapline_record::trampolines::USUAL,
            or_trampolines: false,
            by_trampolines: false,
            faults_are_fatal: false,
            faults_may_be_caught: false,
            faults_delivered: false,
            alone: false,
            obeys_signals: false,
            patience: Duration::from_millis(20),
        }
    }
}

/// How durations are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Durations {
    /// Calls shorter than this many ticks are counted as returns, but not timed.
    pub min_ticks: u64,
    /// How durations are sorted into histogram buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go_g: Option<i32>,
}

/// What the files of a process show about its threads, before a thread is examined.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Threads {
    /// Where the C library says that the rseq areas of its threads lie, as an offset from the thread pointer;
    /// `None` if it registers none.
    pub rseq: Option<i32>,
    /// The program sets thread pointers itself (Go without the C library), or makes threads that may have
    /// none of their own (`clone`). What one thread shows now, or before its runtime began, does not hold for
    /// others.
    pub own_pointers: bool,
    /// Children run on a thread's block for a while (vfork, posix_spawn). By what is stored there, they would
    /// be taken for that thread.
    pub lent_blocks: bool,
}

/// An unwinder of the process that takes frame information at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unwinder {
    /// Its `__register_frame`.
    pub register: RemoteAddr,
    /// Its `__deregister_frame`.
    pub take_back: RemoteAddr,
}

/// Everything that one batch is to do.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The modules.
    pub modules: &'a [Module<'a>],
    /// The process runs a Go program, whichever modules are requested.
    pub go: bool,
    /// What the process' files show about its threads.
    pub threads: Threads,
    /// How durations are measured, if some are requested.
    pub durations: Durations,
    /// How careful the batch is, and what is allowed.
    pub options: Options,
    /// What is called at a hit, if consumers are requested; only in our own process.
    pub calls: Option<CallInput<'a>>,
    /// Filters, indexed by [`ActionRequest::probe`]: which hits are recorded. Empty if all are.
    pub filters: &'a [Option<TargetFilter>],
    /// The unwinders in the process, if calls get return trampolines; empty if there are none.
    pub unwinders: &'a [Unwinder],
    /// Code that neither the allocator nor the loader calls while it holds a lock: the program's own.
    pub own_code: &'a [std::ops::Range<u64>],
}

impl Request<'_> {
    /// The actions of all its requests.
    pub(crate) fn actions(&self) -> impl Iterator<Item = Action> + '_ {
        self.modules.iter().flat_map(|module| module.requests).map(|request| request.action)
    }
    /// Whether some request is exactly this action.
    pub(crate) fn wants(&self, action: Action) -> bool {
        self.actions().any(|one| one == action)
    }
    /// All its filters.
    pub(crate) fn all_filters(&self) -> impl Iterator<Item = &TargetFilter> {
        self.filters.iter().flatten()
    }
    /// Whether the stubs read the clock.
    pub(crate) fn is_timed(&self) -> bool {
        self.actions().any(|action| action.is_timed())
            || self.is_recorded()
            || self.all_filters().any(|filter| filter.late.is_some() || filter.reads_clock())
    }
    /// Whether the stubs write records.
    pub(crate) fn is_recorded(&self) -> bool {
        self.actions().any(|action| {
            matches!(action, Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..))
        })
    }
    /// Whether the stubs walk or copy stacks.
    pub(crate) fn reads_stacks(&self) -> bool {
        let recorded = |action| match action {
            Action::Record { stack, .. } | Action::RecordAt(_, stack) => stack != Unwind::None,
            _ => false,
        };
        let keyed = |filter: &TargetFilter| filter.program.as_ref().is_some_and(|hit| !hit.stacks.is_empty());
        self.actions().any(recorded) || self.all_filters().any(keyed)
    }
    /// Whether the stubs make system calls to read what arguments point to.
    pub(crate) fn has_texts(&self) -> bool {
        let texts = |action| match action {
            Action::Record { texts, fields, .. } => texts != 0 || fields != 0,
            Action::RecordMark(_, fields) => fields != 0,
            _ => false,
        };
        let tallied = |filter: &TargetFilter| {
            filter.tally.as_ref().is_some_and(|tally| tally.texts() != 0 || !filter.reads.is_empty())
                || filter.program.is_some() && !filter.reads.is_empty()
        };
        self.actions().any(texts) || self.all_filters().any(tallied)
    }
    /// Whether the stubs make system calls whatever threads there are.
    pub(crate) fn makes_calls(&self) -> bool {
        self.has_texts() || self.options.waits.is_some()
    }
    /// Whether a filter depends on the thread's number, or an aggregation is grouped by it.
    pub(crate) fn asks_for_thread(&self) -> bool {
        self.all_filters()
            .any(|filter| filter.tally.is_some() || filter.program.is_some() || filter.asks_for_thread())
    }
    /// Whether returns are recorded or aggregated.
    pub(crate) fn follows_returns(&self) -> bool {
        self.actions().any(|action| {
            matches!(action, Action::Record { returns: true, .. } | Action::Tally { exits: true })
        })
    }
    /// Whether there are functions with recorded or aggregated returns, and these always get return
    /// trampolines.
    pub(crate) fn returns_by_trampolines(&self) -> bool {
        self.options.by_trampolines && self.follows_returns()
    }
    /// Whether some calls get return trampolines, or may get them.
    pub(crate) fn may_use_trampolines(&self) -> bool {
        self.wants(Action::LatencyByTrampoline)
            || self.returns_by_trampolines()
            || self.options.or_trampolines && (self.wants(Action::Latency) || self.follows_returns())
    }
}
