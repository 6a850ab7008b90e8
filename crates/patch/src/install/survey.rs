//! What a process allows, looked up before anything is changed.
//!
//! In: a process and a request. Out: traits for the planner, a picture of its address space, whether guard
//! traps can be served, whether all threads must be stopped.
//! Does not: stop a thread.

use trapline_plan::{
    AddressSpace, CodeRegion, DataLayout, MemoryLimits, ProcessTraits, Stacks, ThreadId, TrapsPolicy,
};
use trapline_tracee::{Mapping, MemoryGroup, MemoryLeft, Process, machine_has};

use crate::error::PatchError;
use crate::install::translated::translator;
use crate::native::traps;
use crate::request::Options;
use crate::signals::FAULTS;
use crate::space::soft::Soft;
use crate::threads::blocked::no_traps;
use crate::why::NoTraps;

/// What was found about a process.
#[derive(Debug)]
pub(crate) struct Survey {
    pub(crate) maps: Vec<Mapping>,
    pub(crate) space: AddressSpace,
    /// Traits of the process, without rseq and thread numbers, which only a stopped thread shows.
    pub(crate) traits: ProcessTraits,
    pub(crate) no_traps: Option<NoTraps>,
    /// Stop all threads while code changes.
    pub(crate) still: bool,
    /// Our traps that stand while patches change; only in our own process.
    pub(crate) soft: Soft,
    /// Memory that the process and we may still allocate; without limit in our own process.
    pub(crate) left: MemoryLimits,
    /// The memory limit that leaves the process least.
    pub(crate) memory: Option<MemoryLeft>,
    /// Where the module's code goes, and the layout of its segment; only in our own process.
    pub(crate) code_region: Option<(CodeRegion, DataLayout)>,
}

impl Survey {
    /// `idle` is called while threads are waited for. If they are seized, it must serve them.
    pub(crate) fn new(
        process: &Process,
        go: bool,
        options: &Options,
        idle: &mut dyn FnMut() -> Result<(), PatchError>,
    ) -> Result<Self, PatchError> {
        let status = process.status()?;
        let features = process.features()?;
        let maps = process.maps()?;
        if let Some(by) = translator(&maps) {
            return Err(PatchError::Translated { pid: process.pid(), by });
        }
        let no_traps = if traps::NEEDED { no_traps(process, go, idle)? } else { None };
        // Go's runtime installs handlers of its own soon after the first instruction.
        let has_fault_handler = !options.faults_are_fatal
            && (go
                || options.faults_may_be_caught
                || options.faults_delivered
                || status.caught & FAULTS != 0);
        let traits = ProcessTraits {
            rseq: None,
            cpus: features.cpus,
            rdpid: features.rdpid,
            fsgsbase: features.fsgsbase,
            lse: features.lse,
            sve: features.sve,
            has_fault_handler,
            faults_delivered: has_fault_handler && options.faults_delivered,
            shadow_stack: status.shadow_stack,
            go,
            traps: if no_traps.is_some() { TrapsPolicy::MustNotTrap } else { TrapsPolicy::Guarded },
            kernel_uprobes: options.kernel_uprobes,
            lines: features.cpus + 1,
            thread_id: ThreadId::Call,
            stacks: Stacks { main: main_stack(&maps), ..Stacks::default() },
            waits: options.waits,
        };
        let space = AddressSpace { occupied: process.taken(&maps), heap_end: process.heap_end(&maps)? };
        let still = options.strict || no_traps.is_some() || !traps::NEEDED;
        let soft = Soft::new();
        let left = MemoryLimits::default();
        Ok(Self { maps, space, traits, no_traps, still, soft, left, memory: None, code_region: None })
    }
    /// Notes that the program has taken its signals back from our handler.
    pub(crate) fn serve_no_traps(&mut self) {
        self.no_traps = self.no_traps.or(Some(NoTraps::Taken));
        self.traits.traps = TrapsPolicy::MustNotTrap;
        self.still = true;
    }
    /// Reads from the control groups how much may still be allocated.
    pub(crate) fn ask_groups(&mut self, pid: u32) {
        let group = MemoryGroup::of(pid);
        self.memory = group.left();
        let limited = self.memory.is_some() || group.is_unseen();
        let ours = || {
            let ours = MemoryGroup::of(std::process::id()).left().map_or(u64::MAX, |of| of.left);
            ours.min(machine_has())
        };
        self.left = MemoryLimits {
            limited,
            target: self.memory.as_ref().map(|of| of.left),
            ours: if limited { ours() } else { u64::MAX },
        };
    }
}

/// Range of the main thread's stack, from the lowest address that is mapped now.
fn main_stack(maps: &[Mapping]) -> (u64, u64) {
    maps.iter().find(|m| m.path == "[stack]").map_or((0, 0), |m| (m.start.0, m.end.0))
}
