//! Lays out the code of a module's sites: a stub for each, and what all of them share.
//!
//! In: sites, the module's space. Out: chunks, patches and guards of a [`ModulePlan`]. A request of which some
//! part cannot be laid out is refused as a whole. Does not: choose windows or the space.

use super::code_region::ModuleSpace;
use super::emit::{Emitter, Setting};
use super::env::Env;
use super::jump::JUMP;
use super::room::{GATE, SPARE, arena_per_site, has_short_stubs};
use super::site::{AllSites, Reach};
use super::stub::{self, Latency, Machine};
use crate::input::ModuleInput;
use crate::machine::ProcessTraits;
use crate::plan::{Chunk, ModulePlan, Refused, Region};
use crate::request::{ActionRequest, LatencyInput};
use crate::space::PAGE;
use crate::unwind::TrampolineCode;
use std::collections::BTreeMap;
use trapline_record::addr::Bias;
use trapline_record::trampolines::Trampolines;
use trapline_record::{RemoteAddr, Svma};

/// Approximate number of code bytes for a counted entry.
const BYTES_PER_SITE: usize = 224;
/// From this many sites on, two threads lay them out.
const PARALLEL: usize = 1000;
/// From this many sites on, parts of stubs that hits do not run lie apart. Fewer fit into the caches anyway.
const DENSE: usize = 256;

type Span = (RemoteAddr, RemoteAddr);

/// Lays out all sites into `plan`.
pub(super) fn lay(
    input: &ModuleInput<'_>,
    env: Env<'_>,
    place: ModuleSpace,
    sites: &AllSites,
    plan: &mut ModulePlan,
) {
    let (mirrored_end, mut shared) = (place.arena, Vec::new());
    let gate = input.calls.map(|calls| stub::gate(&mut shared, mirrored_end.0, &calls.functions));
    // The gate's pages come first, then what belongs to single sites.
    let used = input.code_region.map_or(mirrored_end, |code_region| code_region.free);
    let place = ModuleSpace { arena: used.max(gate.map_or(mirrored_end, |_| mirrored_end + GATE)), ..place };
    let laid = lay_sites(Setting::new(input, env, (place, mirrored_end), gate), input, sites);
    plan.join(laid.part);
    if gate.is_some() && used == mirrored_end {
        debug_assert!(shared.len() as u64 <= GATE, "the gate takes {} bytes", shared.len());
        let len = shared.len() as u32;
        let off = plan.add_bytes(shared);
        plan.chunks.push(Chunk { addr: mirrored_end, off, len });
    }
    plan.free = laid.arena;
    let spare = RemoteAddr(plan.free.0.next_multiple_of(PAGE));
    plan.spare = Region { addr: spare, len: SPARE };
    plan.code = match input.code_region {
        Some(code_region) => code_region.code,
        None => Region { addr: place.code.addr, len: spare + SPARE - place.code.addr },
    };
    withdraw(plan, sites, input.requests, laid.lost);
}

/// Lays out all sites, by one thread or, if there are many, by two.
fn lay_sites(set: Setting<'_>, input: &ModuleInput<'_>, sites: &AllSites) -> Laid {
    let Setting { place, mirrored_end, .. } = set;
    let stub_starts = stub_starts(sites, set.bias, place.k, place.arena);
    let limit = RemoteAddr(place.code.end().0 - SPARE);
    let is_one = input.alone || stub_starts.len() < PARALLEL;
    let middle = if is_one { stub_starts.len() } else { stub_starts.len() / 2 };
    let (first, second) = stub_starts.split_at(middle);
    // A window may serve both an entry and an exit.
    let actions =
        |(_, site): &(RemoteAddr, u32)| sites.get(*site).map_or(0, |site| site.actions.len() as u64);
    let many = [first, second].map(|half| half.iter().map(actions).sum::<u64>());
    let between = match second.is_empty() {
        true => limit,
        false => divide((place.arena, limit), many, arena_per_site(input)),
    };
    let end = second.first().map_or(mirrored_end, |l| l.0);
    // `all` has room for everything, since the other half is appended to it. This thread allocates both: the
    // other thread's memory would be new, and the kernel would have to clear it.
    let calls = input.calls.is_some();
    let is_dense = !calls && stub_starts.len() >= DENSE && has_short_stubs(input);
    let (all, its) = (room_for(stub_starts.len(), calls), room_for(second.len(), calls));
    let (mut laid, other) = std::thread::scope(|scope| {
        let other = (!second.is_empty()).then(|| {
            scope.spawn(|| lay_part(set, sites, second, mirrored_end, (between, limit), is_dense, its))
        });
        let own = lay_part(set, sites, first, end, (place.arena, between.min(limit)), is_dense, all);
        (own, other.and_then(|t| t.join().ok()))
    });
    if let Some(other) = other {
        laid.part.join(other.part);
        laid.lost.extend(other.lost);
        laid.arena = other.arena;
    }
    laid
}

/// Where an arena is divided between two halves of so many actions. It may have less than the upper bound for each
/// action (`code_region::choose`); then each half has its share.
fn divide((start, end): Span, [first, second]: [u64; 2], per_action: u64) -> RemoteAddr {
    let room = end.0.saturating_sub(start.0);
    let share = u128::from(room) * u128::from(first) / u128::from((first + second).max(1));
    start + (first * per_action).min(share as u64)
}

/// Code for some of the sites.
struct Laid {
    part: ModulePlan,
    lost: Vec<Refused>,
    /// First free byte of its arena.
    arena: RemoteAddr,
}

/// An empty plan with room for the code and patches of this many sites.
fn room_for(sites: usize, calls: bool) -> ModulePlan {
    let mut part = ModulePlan::default();
    part.bytes.reserve(sites * BYTES_PER_SITE);
    part.chunks.reserve(sites * 2);
    part.patches.reserve(sites);
    part.guards.reserve(sites * 2);
    if calls {
        part.calls.reserve(sites);
        part.originals.reserve(sites * 4);
    }
    part
}

/// Lays the sites with stubs that begin at `stub_starts` into `part`. The next site behind them begins at `end`.
fn lay_part(
    set: Setting<'_>,
    sites: &AllSites,
    stub_starts: &[(RemoteAddr, u32)],
    end: RemoteAddr,
    arena: Span,
    is_dense: bool,
    mut part: ModulePlan,
) -> Laid {
    let mut emitter = Emitter::new(&set, &mut part, arena, is_dense);
    let mut lost = Vec::new();
    for (n, &(stub_start, site)) in stub_starts.iter().enumerate() {
        let next = stub_starts.get(n + 1).map_or(end, |l| l.0).min(set.mirrored_end);
        let room = if set.shared_space { JUMP } else { next.0.saturating_sub(stub_start.0) };
        let Some(site) = sites.get(site) else { continue };
        if let Err(why) = emitter.site(site, stub_start, room) {
            // Every request that has an action there is refused, not only the first one.
            let mut asked: Vec<u32> = site.actions.iter().map(|a| a.request).collect();
            asked.dedup();
            let new = asked.into_iter().map(|request| Refused { probe: 0, request, why: why.clone() });
            lost.extend(new);
        }
    }
    let arena = emitter.finish();
    Laid { part, lost, arena }
}

/// Removes all patches of requests for which some part could not be laid out. A request that shares a patch
/// with one of them loses that patch too, and is refused for the same reason. Of a large program that may be most of a
/// hundred thousand requests, and the program may wait meanwhile.
fn withdraw(plan: &mut ModulePlan, sites: &AllSites, requests: &[ActionRequest], lost: Vec<Refused>) {
    if lost.is_empty() {
        return;
    }
    let mut reasons = BTreeMap::new();
    for Refused { request, why, .. } in lost {
        reasons.entry(request).or_insert(why);
    }
    let mut known = 0;
    while known < reasons.len() {
        known = reasons.len();
        for site in sites.iter() {
            let found = site.actions.iter().find_map(|placed| reasons.get(&placed.request));
            let Some(why) = found.filter(|_| site.actions.len() > 1).cloned() else { continue };
            for placed in &site.actions {
                reasons.entry(placed.request).or_insert_with(|| why.clone());
            }
        }
    }
    plan.patches.retain(|patch| !reasons.contains_key(&patch.request));
    plan.refused.iter().for_each(|refused| drop(reasons.remove(&refused.request)));
    plan.refused.extend(reasons.into_iter().map(|(request, why)| {
        let probe = requests.get(request as usize).map_or(0, |asked| asked.probe);
        Refused { probe, request, why }
    }));
    let mut left: Vec<(RemoteAddr, RemoteAddr)> =
        plan.patches.iter().map(|patch| (patch.addr, patch.addr + u64::from(patch.len))).collect();
    left.sort_unstable();
    let before = |at: RemoteAddr| left[..left.partition_point(|patch| patch.0 < at)].last();
    plan.guards.retain(|guard| before(guard.at).is_some_and(|patch| guard.at < patch.1));
    plan.calls.retain(|call| left.binary_search_by_key(&call.head, |patch| patch.0).is_ok());
}

/// Where each site's stub begins, in address order.
fn stub_starts(sites: &AllSites, bias: Bias, k: i32, arena: RemoteAddr) -> Vec<(RemoteAddr, u32)> {
    let mirrored = |at: Svma| (bias.live(at) + JUMP).offset(i64::from(k));
    let mut all: Vec<(RemoteAddr, u32)> = sites
        .iter()
        .zip(0..)
        .map(|(site, n)| match site.reach {
            Reach::Jump => (mirrored(site.start), n),
            Reach::Island(at) => (mirrored(at), n),
            Reach::Pun(pun) => (pun.target, n),
            // No jump leads to it, so the arena is as good as any address behind the mirrored range.
            Reach::Trap => (arena, n),
        })
        .collect();
    all.sort();
    all
}

/// The code of a process' return trampolines.
pub(crate) fn trampolines_for(
    traits: &ProcessTraits,
    trampolines: Trampolines,
    input: &LatencyInput,
) -> Option<TrampolineCode> {
    let machine = Machine { rseq: traits.rseq, rdpid: traits.rdpid, lines: traits.lines };
    let latency = Latency {
        area: 0,
        functions: 0,
        stamps: 0,
        shape: input.shape,
        missed: 0,
        min_ticks: input.min_ticks,
        buckets: input.buckets,
        outermost: false,
        go: None,
        trampolines: Some(trampolines),
    };
    match input.leads_on {
        true => stub::leading_trampoline_code(&machine, &latency),
        false => stub::trampoline_code(&machine, &latency),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Patch, PatchRole, Tactic};
    use crate::refusal::Refusal;
    use crate::request::Action;
    use crate::x86_64::action::{PlacedAction, SiteAction, When};
    use crate::x86_64::site::{Owner, PatchedSite};
    use smallvec::SmallVec;
    use trapline_record::ring::RecordKind;

    fn site(start: u64, asked: &[u32]) -> PatchedSite {
        let placed = |&request: &u32| PlacedAction {
            at: Svma(start),
            when: When::Before,
            action: SiteAction::Count { probe: 10 + request, kind: RecordKind::Entry },
            dead: stub::Liveness::default(),
            request,
            lowered: 0,
            detour: None,
        };
        PatchedSite {
            owner: Owner { request: asked[0], probe: 10 + asked[0], role: PatchRole::Entry },
            start: Svma(start),
            insns: SmallVec::new(),
            actions: asked.iter().map(placed).collect(),
            changed: JUMP,
            reach: Reach::Jump,
            faults_before: false,
        }
    }

    #[test]
    fn each_half_has_its_share_of_an_arena() {
        let span = |len: u64| (RemoteAddr(0x1000), RemoteAddr(0x1000 + len));
        // All that is asked for: the rest stays behind the second half.
        assert_eq!(divide(span(1 << 20), [10, 30], 1024), RemoteAddr(0x1000 + 10 * 1024));
        // Half of it, and nothing.
        assert_eq!(divide(span(20 * 1024), [10, 30], 1024), RemoteAddr(0x1000 + 5 * 1024));
        assert_eq!(divide(span(0), [10, 30], 1024), RemoteAddr(0x1000));
        assert_eq!(divide((RemoteAddr(0x2000), RemoteAddr(0x1000)), [0, 0], 1024), RemoteAddr(0x2000));
    }

    #[test]
    fn a_site_that_shares_a_patch_with_one_withdrawn_is_refused_too() {
        let request =
            |probe| ActionRequest { probe, latency: None, function: None, action: Action::CountEntry };
        let requests = [request(10), request(11), request(12)];
        let sites = [site(0x10, &[0]), site(0x20, &[0, 1]), site(0x30, &[2])];
        let patch = |n: usize| Patch {
            probe: sites[n].owner.probe,
            request: sites[n].owner.request,
            role: PatchRole::Entry,
            tactic: Tactic::Jump,
            addr: RemoteAddr(sites[n].start.0),
            len: 5,
            relies: 5,
            old: [0; 8],
            new: [0; 8],
            head: RemoteAddr(0),
            crosses_line: false,
            starts: 0,
            faults: false,
            faults_before: false,
        };
        let mut plan = ModulePlan { patches: vec![patch(1), patch(2)], ..ModulePlan::default() };
        let lost = Refused { probe: 0, request: 0, why: Refusal::NotInFile { at: Svma(0x10) } };
        withdraw(&mut plan, &AllSites::from(sites.to_vec()), &requests, vec![lost]);
        assert_eq!(plan.refused.iter().map(|r| (r.request, r.probe)).collect::<Vec<_>>(), [(0, 10), (1, 11)]);
        assert_eq!(plan.patches.iter().map(|p| p.request).collect::<Vec<_>>(), [2]);
    }
}
