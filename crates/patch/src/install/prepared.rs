//! What a batch is about to do, as a value.
//!
//! In: plans, after their sites were compared with memory. Out: the journal's entries and the guards that
//! their code needs. Invariants: PATCH-7.
//! Does not: plan, compare, or write.

use trapline_plan::{Delivery, ModulePlan, Patch, PatchRole, Tactic};
use trapline_record::RemoteAddr;
use trapline_record::control::delivery;
use trapline_record::journal::{Entry, EntryKind};

use crate::install::layout::Room;
use crate::memory::segment::MadeTrampolines;
use crate::native::cpu::proven;
use crate::native::traps::is_staged;
use crate::report::{Placed, Refused};
use crate::why::Why;

/// A site to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedSite {
    pub(crate) module: u32,
    pub(crate) patch: Patch,
}

impl PreparedSite {
    pub(crate) fn entry(&self) -> Entry {
        let kind = match self.patch.role {
            PatchRole::Handler => EntryKind::Handler,
            PatchRole::Island => EntryKind::Island,
            PatchRole::ExitRet | PatchRole::ExitTail => EntryKind::Exit,
            PatchRole::Entry => EntryKind::Entry,
        };
        let Patch { addr, len, starts, old, new, .. } = self.patch;
        Entry { addr, len, kind, starts, old, new }
    }
    pub(crate) fn placed(&self) -> Placed {
        let Patch { probe, request, role, tactic, addr, .. } = self.patch;
        Placed { module: self.module, probe, request, role, tactic, addr }
    }
    pub(crate) fn refused(&self, why: Why) -> Refused {
        Refused { module: self.module, probe: self.patch.probe, request: self.patch.request, why }
    }
    /// Whether an int3 may stand at its head, temporarily or for good (PATCH-7).
    pub(crate) fn may_trap(&self) -> bool {
        self.patch.tactic == Tactic::Trap || is_staged(&self.entry(), proven().words)
    }
    fn end(&self) -> RemoteAddr {
        self.patch.addr + u64::from(self.patch.len)
    }
    fn covers(&self, at: u64) -> bool {
        at.wrapping_sub(self.patch.addr.0) < u64::from(self.patch.len)
    }
}

/// What is to be done in a batch.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Plans of which some patch is left.
    pub(crate) plans: Vec<ModulePlan>,
    /// Their patches, sorted by address.
    pub(crate) sites: Vec<PreparedSite>,
    /// Triples (module, request, other request): two requests that share a site.
    pub(crate) shares: Vec<(u32, u32, u32)>,
    /// Where its data lies.
    pub(crate) room: Room,
    pub(crate) semaphores: Vec<Entry>,
    /// Return trampolines that are to be made, and their code.
    pub(crate) trampolines: Option<(MadeTrampolines, Vec<u8>)>,
}

impl Prepared {
    /// Pairs: an address that traps, and where its thread goes on. They are for interior boundaries, for
    /// loads of our own that may fault, and for heads that hold int3 temporarily or for good (PATCH-7).
    /// Refused windows have none: another tool's trap may stand there.
    pub(crate) fn guards(&self) -> Vec<(u64, u64)> {
        let mut guards = Vec::new();
        for plan in &self.plans {
            // Both are sorted by address, so one pass suffices.
            let mut sites = self.sites.iter().peekable();
            let covered = plan.guards.iter().filter(|guard| {
                while sites.next_if(|s| s.end() <= guard.at).is_some() {}
                sites.peek().is_some_and(|s| s.covers(guard.at.0))
            });
            guards.extend(covered.map(|guard| (guard.at.0, guard.resume.0)));
        }
        // Loads of stubs, whether or not their sites were refused.
        let fixups = self.plans.iter().flat_map(|plan| &plan.fixups);
        guards.extend(fixups.map(|fixup| (fixup.at.0, fixup.resume.0)));
        // There are two sorted runs, which this sort merges.
        guards.sort_by_key(|&guard| guard);
        // A head leads to the start of its stub, wherever that lies, not to the copy of its instruction.
        let trapping = self.sites.iter().filter(|s| s.may_trap());
        let mut all: Vec<_> = trapping.map(|s| (s.patch.addr.0, s.patch.head.0)).collect();
        all.append(&mut guards);
        all.sort_by_key(|guard| guard.0);
        all.dedup_by_key(|guard| guard.0);
        all
    }
    /// Copies, and where their faults are delivered, as `record::control::delivery` has them; sorted.
    pub(crate) fn deliveries(&self) -> Vec<(u64, u64)> {
        let pair = |one: &Delivery| {
            let traps = if one.is_inside { delivery::TRAPS } else { 0 };
            (one.copy.0 | delivery::COPY, one.original.0 | traps)
        };
        let mut pairs: Vec<_> = self.plans.iter().flat_map(|plan| &plan.deliveries).map(pair).collect();
        pairs.sort_unstable();
        pairs
    }
    /// Whether a site serves this request of this module.
    pub(crate) fn serves(&self, module: u32, request: u32) -> bool {
        let shared = |owner: u32| self.shares.contains(&(module, owner, request));
        let mut sites = self.sites.iter().filter(|site| site.module == module);
        sites.any(|site| site.patch.request == request || shared(site.patch.request))
    }
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.sites.iter().map(PreparedSite::entry).chain(self.semaphores.iter().copied()).collect()
    }
}
