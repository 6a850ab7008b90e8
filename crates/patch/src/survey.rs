//! What a process allows, looked up before anything is changed.
//!
//! In: a process and a request. Out: traits for the planner, a picture of its address space, whether guard traps can be
//! served, whether all threads must be stopped. Also: whether a site's mapping still shows the file's bytes (PATCH-11).
//! Does not: stop anybody.

use std::time::{Duration, Instant};

use trapline_plan::{AddressSpace, DataLayout, Home, ProcessTraits, Stacks, ThreadId, TrapsPolicy};
use trapline_record::RemoteAddr;
use trapline_target::{Mapping, Process};

use crate::error::PatchError;
use crate::own::soft::Soft;
use crate::request::{Module, NoTraps, Options};

/// Bit of a signal in a set.
const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}
/// Signal numbers.
pub(crate) const SIGILL: i32 = 4;
pub(crate) const SIGTRAP: i32 = 5;
pub(crate) const SIGBUS: i32 = 7;
pub(crate) const SIGSEGV: i32 = 11;

/// libc blocks all signals for microseconds when it makes threads. A thread has them blocked for good if it sleeps like
/// that for so long, or if it ran between so many looks and had them blocked at each; one that waits for a CPU proves
/// nothing.
const TRANSIENT_SLEEP: Duration = Duration::from_millis(5);
const TRANSIENT_LOOKS: u32 = 24;
/// Nobody is waited for longer.
const TRANSIENT_MOST: Duration = Duration::from_millis(500);

/// What was seen.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) maps: Vec<Mapping>,
    pub(crate) space: AddressSpace,
    /// Without rseq and thread numbers, which only a stopped thread tells.
    pub(crate) traits: ProcessTraits,
    pub(crate) no_traps: Option<NoTraps>,
    /// Stop all threads while code changes.
    pub(crate) still: bool,
    /// Traps of ours that stand where patches change; in our own process only.
    pub(crate) soft: Soft,
    /// Where the module's code goes, and how its segment is laid out; in our own process only.
    pub(crate) home: Option<(Home, DataLayout)>,
}

impl Survey {
    /// `idle` is called while threads are waited for; it must serve them if they are seized.
    pub(crate) fn new(
        process: &Process,
        go: bool,
        options: &Options,
        idle: &mut dyn FnMut() -> Result<(), PatchError>,
    ) -> Result<Self, PatchError> {
        let status = process.status()?;
        let features = process.features()?;
        let maps = process.maps()?;
        let no_traps = no_traps(process, go, idle)?;
        let traits = ProcessTraits {
            rseq: None,
            cpus: features.cpus,
            rdpid: features.rdpid,
            fsgsbase: features.fsgsbase,
            has_fault_handler: !options.faults_are_fatal
                && status.caught & (bit(SIGSEGV as u32) | bit(SIGBUS as u32)) != 0,
            shadow_stack: status.shadow_stack,
            go,
            traps: if no_traps.is_some() { TrapsPolicy::MustNotTrap } else { TrapsPolicy::Guarded },
            kernel_allowed: options.kernel_allowed,
            lines: features.cpus + 1,
            thread_id: ThreadId::Call,
            stacks: Stacks { main: main_stack(&maps), ..Stacks::default() },
        };
        let space = AddressSpace {
            occupied: maps.iter().map(|m| (m.start, m.end)).collect(),
            heap_end: process.heap_end()?,
        };
        let still = options.strict || no_traps.is_some() || !crate::cpu::proven().words;
        Ok(Self { maps, space, traits, no_traps, still, soft: Soft::new(), home: None })
    }
}

/// The main thread's stack, from the lowest address that is mapped now.
fn main_stack(maps: &[Mapping]) -> (u64, u64) {
    maps.iter().find(|m| m.path == "[stack]").map_or((0, 0), |m| (m.start.0, m.end.0))
}

/// Why guard traps cannot be served, if they cannot.
fn no_traps(
    process: &Process,
    go: bool,
    idle: &mut dyn FnMut() -> Result<(), PatchError>,
) -> Result<Option<NoTraps>, PatchError> {
    if go {
        return Ok(Some(NoTraps::Owned));
    }
    let start = Instant::now();
    // (thread, run time at the last look, looks at which it had run and blocked the signal)
    let mut blocked: Vec<(u32, u64, u32)> = process.threads()?.into_iter().map(|tid| (tid, 0, 0)).collect();
    loop {
        let mut for_good = None;
        blocked.retain_mut(|(tid, last, looks)| {
            // A thread that is gone blocks nothing.
            let (Ok(status), Ok(ran)) = (process.thread_status(*tid), process.run_time(*tid)) else {
                return false;
            };
            let blocks = status.blocked & (bit(SIGTRAP as u32) | bit(SIGILL as u32)) != 0;
            *looks += u32::from(std::mem::replace(last, ran) != ran);
            let asleep = status.state == 'S' && start.elapsed() > TRANSIENT_SLEEP;
            if blocks && (asleep || *looks > TRANSIENT_LOOKS || start.elapsed() > TRANSIENT_MOST) {
                for_good = Some(*tid);
            }
            blocks
        });
        if let Some(tid) = for_good {
            return Ok(Some(NoTraps::Blocked { tid }));
        }
        if blocked.is_empty() {
            return Ok(None);
        }
        idle()?;
    }
}

/// Whether `len` bytes of code at `addr` are mapped from the module's file, at the offset that the file states.
pub(crate) fn shows_file(maps: &[Mapping], module: &Module<'_>, addr: RemoteAddr, len: u64) -> bool {
    let after = maps.partition_point(|m| m.start <= addr);
    let Some(mapping) = after.checked_sub(1).map(|i| &maps[i]) else { return false };
    let offset = mapping.offset + addr.0.wrapping_sub(mapping.start.0);
    mapping.file == Some(module.file)
        && mapping.perms.exec
        && addr + len <= mapping.end
        && module.image.offset_of(module.bias.stated(addr)) == Some(offset)
}
