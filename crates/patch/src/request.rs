//! Requests to this crate, and its reports, as values.

use std::fmt;
use std::time::Duration;

use trapline_plan::filter::TargetFilter;
use trapline_plan::{ActionRequest, Buckets, CallInput, CodeMap, Image, KernelSite, PatchRole, Tactic};
use trapline_record::addr::Bias;
use trapline_record::journal::MAX_PATCH;
use trapline_record::{RemoteAddr, Svma};
use trapline_tracee::{BatchReport, FileId};

use crate::returns::unwinder::Unwinder;
pub(crate) use crate::why::{NoTraps, Why};

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
    /// Sites that no jump reaches may become kernel uprobes.
    pub kernel_allowed: bool,
    /// Count hits by thread; see `record::threads`.
    pub by_thread: bool,
    /// Bytes of each CPU's ring of records, if records are requested; a power of two.
    pub ring: u32,
    /// Number of return trampolines of the process, if some calls use them: at most this many calls are timed
    /// at once.
    pub trampolines: u32,
    /// A function whose returns are timed, recorded or aggregated gets return trampolines if it leaves by a
    /// jump to another function, or if its exits cannot be found or patched. Set only if unwinders can be
    /// informed.
    pub or_trampolines: bool,
    /// Functions whose returns are recorded or aggregated always get return trampolines.
    pub by_trampolines: bool,
    /// The process' SIGSEGV and SIGBUS handlers only end it: instructions that may fault may be moved.
    pub faults_are_fatal: bool,
    /// The process may begin to catch faults, and none of its threads can be held before that. So no
    /// instruction that may fault is moved.
    pub faults_may_be_caught: bool,
    /// No thread is created to help with the plan.
    pub alone: bool,
    /// How long to wait for a thread that can make our calls without its own call being disturbed.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            strict: false,
            free: false,
            kernel_allowed: false,
            by_thread: false,
            ring: 4 << 20,
            trampolines: trapline_record::trampolines::USUAL,
            or_trampolines: false,
            by_trampolines: false,
            faults_are_fatal: false,
            faults_may_be_caught: false,
            alone: false,
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

/// A site that is in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Index of its module in the request.
    pub module: u32,
    /// The request's probe.
    pub probe: u32,
    /// Index of the request in its module.
    pub request: u32,
    /// What the patch is for.
    pub role: PatchRole,
    /// How the site leads to its stub.
    pub tactic: Tactic,
    /// Address of the patch.
    pub addr: RemoteAddr,
}

/// A request that is not in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Index of its module in the request.
    pub module: u32,
    /// The request's probe.
    pub probe: u32,
    /// Index of the request in its module.
    pub request: u32,
    /// The reason.
    pub why: Why,
}

/// How long each part of a batch took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// Seizing every thread.
    pub seize: Duration,
    /// Reading the maps and the threads' signal masks.
    pub look: Duration,
    /// The first stop of one thread: rseq, memfd.
    pub first_stop: Duration,
    /// Planning the modules.
    pub plan: Duration,
    /// Comparing the bytes of all sites with the file.
    pub verify: Duration,
    /// Filling code, guard table and journal.
    pub fill: Duration,
    /// The second stop: mappings, handlers.
    pub second_stop: Duration,
    /// Writing the sites.
    pub publish: Duration,
    /// The whole batch.
    pub total: Duration,
}

/// What a batch did.
#[derive(Clone, Debug, Default)]
pub struct AttachReport {
    /// Sites in place.
    pub placed: Vec<Placed>,
    /// Requests that are not in place.
    pub refused: Vec<Refused>,
    /// Probes with an exit that is a jump to another function, whether placed or refused.
    pub tails: Vec<u32>,
    /// Probes whose calls get a return trampoline, though exits were tried first.
    pub slotted: Vec<u32>,
    /// Sites for the caller to reach by kernel uprobes, each with the index of its module.
    pub kernel: Vec<(u32, KernelSite)>,
    /// The process catches faults, so no instruction that may fault was moved.
    pub fault_handler: bool,
    /// Why all threads were stopped while code changed; `None` also with `--strict` or an unproven CPU.
    pub no_traps: Option<NoTraps>,
    /// All threads were stopped while code changed.
    pub stopped_all: bool,
    /// Number of children forked during the batch that got the same patches.
    pub children: u32,
    /// Number of semaphores raised.
    pub semaphores: u32,
    /// What the seizure cost the process.
    pub batch: BatchReport,
    /// Where the time went.
    pub timings: Timings,
    /// Bytes of address space that were mapped.
    pub mapped: u64,
    /// Bytes of generated code.
    pub code: u64,
    /// How much of the process' memory the patches take.
    pub memory: Memory,
    /// Bytes of each ring, and bytes that it was to have, if limits of memory made it smaller.
    pub small_rings: Option<(u64, u64)>,
}

/// Memory that a batch adds to a process, in bytes. Pages to which nothing is written take none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Code, journal and guards.
    pub sites: u64,
    /// Counters and latency areas of one CPU, once it has hit them all.
    pub per_cpu: u64,
}

/// A site that was not restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotRestored {
    /// Address of the site.
    pub addr: RemoteAddr,
    /// What it holds; `None` if it cannot be reached.
    pub found: Option<[u8; MAX_PATCH]>,
    /// How many of these bytes are valid.
    pub len: u8,
}

impl fmt::Display for NotRestored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found {
            None => write!(f, "{}: no longer mapped", self.addr),
            Some(found) => {
                let found = &found[..usize::from(self.len).min(MAX_PATCH)];
                write!(f, "{}: holds {found:02x?}, which is not ours: left alone", self.addr)
            }
        }
    }
}

/// What became of one process.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// The process.
    pub pid: u32,
    /// Number of sites that hold the file's bytes again.
    pub sites: u32,
    /// Number of sites that held them already.
    pub already: u32,
    /// Number of sites with another tool's breakpoint at the head, which was kept.
    pub breakpoints: u32,
    /// Sites left alone.
    pub left: Vec<NotRestored>,
    /// Number of signal actions put back.
    pub actions: u32,
    /// Number of signal actions that are no longer ours and were left alone.
    pub foreign_actions: u32,
    /// Number of semaphores lowered.
    pub semaphores: u32,
    /// Why no thread could make our calls, if none could: the code is the file's again, but actions and
    /// mappings stay.
    pub barred: Option<String>,
    /// Number of return addresses of running calls that were put back.
    pub returns: u32,
    /// Bytes of address space that stay mapped, because a thread may still be in that code.
    pub stays_mapped: u64,
    /// Bytes of address space that were unmapped.
    pub unmapped: u64,
    /// What the seizure cost the process.
    pub batch: BatchReport,
    /// Time of writing the sites.
    pub restore: Duration,
    /// Time of waiting until no thread was between a guard's trap and its stop.
    pub quiesce: Duration,
    /// Time of all of it.
    pub total: Duration,
}

/// A process that could not be cleaned up.
#[derive(Debug)]
pub struct Untouched {
    /// The process.
    pub pid: u32,
    /// The reason.
    pub why: crate::PatchError,
}

/// What became of the process and of its children that map the same memory.
#[derive(Debug, Default)]
pub struct DetachReport {
    /// Processes that were cleaned up: the process itself first, unless it is gone.
    pub restored: Vec<Restored>,
    /// Processes that were not cleaned up.
    pub untouched: Vec<Untouched>,
    /// The process itself ended or ran another program before anything had to be restored.
    pub gone: bool,
}
