//! What is asked of this room, and what it answers, as values.

use std::fmt;
use std::time::Duration;

use trapline_plan::filter::TargetFilter;
use trapline_plan::{Buckets, CallInput, CodeMap, Image, KernelSite, PatchRole, Tactic, Want};
use trapline_record::addr::Bias;
use trapline_record::journal::MAX_PATCH;
use trapline_record::{RemoteAddr, Svma};
use trapline_target::{BatchReport, FileId};

use crate::unwinder::Unwinder;
pub(crate) use crate::why::{NoTraps, Why};

/// One mapped file in which something is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Module<'a> {
    /// Its name in messages.
    pub name: &'a str,
    /// Which file the mappings must show.
    pub file: FileId,
    /// What the file says.
    pub image: &'a Image,
    /// Where it is loaded.
    pub bias: Bias,
    /// Its branch targets.
    pub map: &'a CodeMap,
    /// What is wanted. `Want::probe` and `Want::latency` are distinct over all modules of a request.
    pub wants: &'a [Want],
    /// USDT semaphores to raise for those wants that get patches.
    pub semaphores: &'a [Semaphore],
}

/// A USDT semaphore: a `u16` that is not 0 while somebody traces its marker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Semaphore {
    /// The marker's probe.
    pub probe: u32,
    /// Where the word lies.
    pub at: Svma,
}

/// How careful to be, and what is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Stop all threads while code changes.
    pub strict: bool,
    /// At detach, stop all threads once more to prove that nobody is in our code, and unmap it.
    pub free: bool,
    /// Sites that no jump reaches may become kernel uprobes.
    pub kernel_allowed: bool,
    /// Count hits by thread; see `record::threads`.
    pub by_thread: bool,
    /// Bytes of each CPU's ring of records, where some are wanted; a power of two.
    pub ring: u32,
    /// Slots of the process, where calls get some in place of their return addresses: at most so many calls are timed at once.
    pub slots: u32,
    /// Functions whose returns are timed, recorded or tallied get slots where one is left by a jump to another, or its exits cannot be had: unwinders
    /// can be told.
    pub or_slots: bool,
    /// Functions whose returns are recorded or tallied get slots in any case.
    pub by_slots: bool,
    /// The process' SIGSEGV and SIGBUS handlers only end it: instructions that may fault may be moved.
    pub faults_are_fatal: bool,
    /// The process may come to catch faults, and no thread of it can be held before: what may fault is not moved.
    pub faults_may_be_caught: bool,
    /// No thread is made to help with the plan.
    pub alone: bool,
    /// How long to wait for a thread that may make our calls without its own call being disturbed.
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
            slots: trapline_record::slots::USUAL,
            or_slots: false,
            by_slots: false,
            faults_are_fatal: false,
            faults_may_be_caught: false,
            alone: false,
            patience: Duration::from_millis(20),
        }
    }
}

/// How durations are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Durations {
    /// Calls shorter than this many ticks count as returns only.
    pub min_ticks: u64,
    /// How durations fall into buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go_g: Option<i32>,
}

/// What the files of a process say of its threads, before one is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Threads {
    /// Where the C library says that the rseq areas of its threads lie, from the thread pointer on; nothing where it registers none.
    pub rseq: Option<i32>,
    /// The program sets thread pointers itself (Go without the C library), or makes threads that may have none of their own (`clone`). What a thread
    /// shows now, or before its runtime began, is true of no other.
    pub own_pointers: bool,
    /// Children run on a thread's block for a while (vfork, posix_spawn), and would be taken for it by what stands there.
    pub lent_blocks: bool,
}

/// All that one batch is to do.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Where.
    pub modules: &'a [Module<'a>],
    /// The process runs a Go program, whichever modules are asked for.
    pub go: bool,
    /// What the process' files say of its threads.
    pub threads: Threads,
    /// How durations are kept, where some are wanted.
    pub durations: Durations,
    /// How.
    pub options: Options,
    /// What is called at a hit, where consumers are wanted; in our own process only.
    pub calls: Option<CallInput<'a>>,
    /// By [`Want::probe`]: which hits are recorded; empty when all are.
    pub filters: &'a [Option<TargetFilter>],
    /// Who unwinds stacks in the process, where calls get slots; empty when nobody does.
    pub unwinders: &'a [Unwinder],
    /// Code that neither allocator nor loader call while they hold a lock: the program's own.
    pub own_code: &'a [std::ops::Range<u64>],
}

/// A site that is in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Index of its module in the request.
    pub module: u32,
    /// The want's probe.
    pub probe: u32,
    /// Index of the want in its module.
    pub want: u32,
    /// Entry, exit.
    pub role: PatchRole,
    /// How it is reached.
    pub tactic: Tactic,
    /// Where.
    pub addr: RemoteAddr,
}

/// A want that is not in place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Index of its module in the request.
    pub module: u32,
    /// The want's probe.
    pub probe: u32,
    /// Index of the want in its module.
    pub want: u32,
    /// Why.
    pub why: Why,
}

/// Where the time of a batch went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// Seizing every thread.
    pub seize: Duration,
    /// Reading the maps and the threads' signal masks.
    pub look: Duration,
    /// The first stop of one thread: rseq, memfd.
    pub first_stop: Duration,
    /// Planning.
    pub plan: Duration,
    /// Comparing the bytes of all sites with the file.
    pub verify: Duration,
    /// Filling code, guard table and journal.
    pub fill: Duration,
    /// The second stop: mappings, handlers.
    pub second_stop: Duration,
    /// Writing the sites.
    pub publish: Duration,
    /// All of it.
    pub total: Duration,
}

/// What a batch did.
#[derive(Clone, Debug, Default)]
pub struct AttachReport {
    /// Sites in place.
    pub placed: Vec<Placed>,
    /// Wants that are not.
    pub refused: Vec<Refused>,
    /// Probes of which an exit is a jump to another function: whether placed or refused.
    pub tails: Vec<u32>,
    /// Probes whose calls get a slot, though exits were to be taken first.
    pub slotted: Vec<u32>,
    /// Sites for the caller to reach by kernel uprobes, with the index of their module.
    pub kernel: Vec<(u32, KernelSite)>,
    /// The process catches faults, so that what may fault was not moved.
    pub fault_handler: bool,
    /// All threads were stopped while code changed, because of this; `None` with `--strict` or an unproven CPU too.
    pub no_traps: Option<NoTraps>,
    /// All threads were stopped while code changed.
    pub stopped_all: bool,
    /// Children forked during the batch that got the same patches.
    pub children: u32,
    /// Semaphores raised.
    pub semaphores: u32,
    /// What the seizure cost the process.
    pub batch: BatchReport,
    /// Where the time went.
    pub timings: Timings,
    /// Bytes of address space that were mapped.
    pub mapped: u64,
    /// Bytes of generated code.
    pub code: u64,
    /// What the patches take of the process' memory.
    pub memory: Memory,
    /// Bytes of each ring, and of what it was to have, where limits of memory made it smaller.
    pub small_rings: Option<(u64, u64)>,
}

/// Memory that a batch adds to a process, in bytes; pages that nothing is written to stay unused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Code, journal and guards.
    pub sites: u64,
    /// Counters and latency areas of one CPU, once it has hit them all.
    pub per_cpu: u64,
}

/// A site that was not restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Left {
    /// Where.
    pub addr: RemoteAddr,
    /// What it holds; `None` when it cannot be reached.
    pub found: Option<[u8; MAX_PATCH]>,
    /// How many of these count.
    pub len: u8,
}

impl fmt::Display for Left {
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
    /// Sites that hold the file's bytes again.
    pub sites: u32,
    /// Sites that already did.
    pub already: u32,
    /// Sites with somebody's breakpoint at the head, which was kept.
    pub breakpoints: u32,
    /// Sites left alone.
    pub left: Vec<Left>,
    /// Signal actions put back.
    pub actions: u32,
    /// Signal actions that are no longer ours and were left alone.
    pub foreign_actions: u32,
    /// Semaphores lowered.
    pub semaphores: u32,
    /// No thread could make our calls, and why: code is the file's again, but actions and mappings stay.
    pub barred: Option<String>,
    /// Return addresses of running calls put back.
    pub returns: u32,
    /// Bytes of address space that stay mapped, because a thread may still be in that code.
    pub stays_mapped: u64,
    /// Bytes of address space that were unmapped.
    pub unmapped: u64,
    /// What the seizure cost the process.
    pub batch: BatchReport,
    /// Writing the sites.
    pub restore: Duration,
    /// Waiting until nobody was between a guard's trap and its stop.
    pub quiesce: Duration,
    /// All of it.
    pub total: Duration,
}

/// A process that could not be cleaned up.
#[derive(Debug)]
pub struct Untouched {
    /// The process.
    pub pid: u32,
    /// Why.
    pub why: crate::PatchError,
}

/// What became of the process and of its children that map the same memory.
#[derive(Debug, Default)]
pub struct DetachReport {
    /// Cleaned up: the process itself first, unless it is gone.
    pub restored: Vec<Restored>,
    /// Not cleaned up.
    pub untouched: Vec<Untouched>,
    /// The process itself ended or ran another program before anything was to be restored.
    pub gone: bool,
}
