//! What a batch and a removal did, as values.
//!
//! In: what the steps found. Out: reports for the caller. Does not: decide anything.

use std::fmt;
use std::time::Duration;

use trapline_plan::{KernelSite, PatchRole, Tactic};
use trapline_record::RemoteAddr;
use trapline_record::journal::MAX_PATCH;
use trapline_tracee::BatchReport;

use crate::error::PatchError;
use crate::why::{NoTraps, Why};

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
    /// Probes with a return trampoline for each call, though exits were tried first.
    pub armed: Vec<u32>,
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
    pub why: PatchError,
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
