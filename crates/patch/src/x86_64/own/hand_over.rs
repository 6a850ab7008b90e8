//! What the handler of traps, and the engine, must have before a site is written (PATCH-4).
//!
//! In: a batch with its code in place. Out: regions, copies and guards for the handler; calls. They are taken
//! out of the batch. Does not: write sites.

use trapline_plan::{Call, Tactic};
use trapline_runtime::x86_64::{Brought, Windows};

use crate::install::prepared::Prepared;

/// An instruction before which consumers are called, before anything is written there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnCall {
    /// Index of its module in the request.
    pub module: u32,
    /// Its address, the copy of what is there, and the probes that are called.
    pub call: Call,
}

/// Gives the trap handler what it must know about a batch.
pub(super) fn hand_over(windows: &Windows, prepared: &mut Prepared, guards: &[(u64, u64)]) {
    let any_traps = prepared.sites.iter().any(|site| site.patch.tactic == Tactic::Trap);
    let is_trap = |addr| {
        if !any_traps {
            return false;
        }
        let at = prepared.sites.partition_point(|s| s.patch.addr.0 < addr);
        prepared.sites.get(at).is_some_and(|s| s.patch.addr.0 == addr && s.patch.tactic == Tactic::Trap)
    };
    let mut guards: Vec<(u64, u64)> = guards.iter().copied().filter(|guard| !is_trap(guard.0)).collect();
    for plan in &mut prepared.plans {
        let originals = std::mem::take(&mut plan.originals).into_iter().map(|o| (o.copy.0, o.of.0)).collect();
        let region = plan.code.addr.0..plan.code.end().0;
        windows.add(Brought { region, originals, guards: std::mem::take(&mut guards) });
        for region in &plan.pun_regions {
            let region = region.addr.0..region.end().0;
            windows.add(Brought { region, ..Brought::default() });
        }
    }
}

/// The calls of sites that are to be written.
pub(super) fn calls(prepared: &mut Prepared) -> Vec<OwnCall> {
    let Prepared { plans, sites, .. } = prepared;
    // They are mostly in the order of the sites.
    let mut next = sites.iter().peekable();
    let mut module = |at| {
        while next.next_if(|s| s.patch.addr < at).is_some() {}
        let found = next.peek().copied().filter(|s| s.patch.addr == at);
        let search = || sites.binary_search_by_key(&at, |s| s.patch.addr).ok().map(|n| &sites[n]);
        found.or_else(search).map(|s| s.module)
    };
    let all = plans.iter_mut().flat_map(|plan| std::mem::take(&mut plan.calls));
    all.filter_map(|call| Some(OwnCall { module: module(call.head)?, call })).collect()
}
