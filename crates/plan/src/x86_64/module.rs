//! Plans a module on x86-64: chooses the space, plans each function, has the stubs laid out.
//!
//! In: [`ModuleInput`]. Out: [`ModulePlan`]. Does not: decide anything about a single site.

use super::code_region::{choose, need};
use super::env::{Env, observed};
use super::function::{Planner, Sites};
use super::jump::JUMP;
use super::lay::lay;
use super::pun::Puns;
use super::site::{AllSites, PatchedSite};
use crate::bounds::{has_exits, sites_of};
use crate::input::ModuleInput;
use crate::plan::{KernelSite, ModulePlan, PatchRole, Refused, Region, Tactic};
use crate::refusal::{PlanError, Refusal};
use crate::request::ActionRequest;
use trapline_image::FunctionIndex;
use trapline_record::{RemoteAddr, Svma};

/// From this many requests on, two threads plan.
const PARALLEL: usize = 1000;
/// The work for a function's entry, as so many bytes of code that are looked at.
const ENTRY: u64 = 64;

/// Plans all requests for one module.
///
/// # Errors
/// [`PlanError`] if nothing at all can be planned; a request that fails alone is in [`ModulePlan::refused`].
pub(crate) fn plan_module(input: &ModuleInput<'_>) -> Result<ModulePlan, PlanError> {
    let (map, speculation) = input.map.x86_64().ok_or(PlanError::NoText)?;
    let observed = observed(input.image, input.requests);
    let env = Env {
        image: input.image,
        map,
        traits: input.traits,
        calls: input.calls,
        filters: input.filters,
        by_thread: input.layout.threads.rows > 0,
        patched: input.patched,
        observed: &observed,
    };
    let place = match input.code_region {
        Some(code_region) => code_region.place(),
        None => choose(input.space, &need(input)?)?,
    };
    let own = place.span();
    let planned = match speculation.take().and_then(|sites| sites.fits(env.traits, env.calls, input.requests))
    {
        Some(sites) => Planned { overlap: overlap(spans(&sites)), sites: sites.into(), ..Planned::default() },
        None => plan_sites(env, input, own),
    };
    let Planned { mut sites, overlap, mut refused, kernel, pun_regions, armed } = planned;
    if overlap {
        let mut all = sites.joined();
        all.sort_by_key(|s| s.start);
        drop_overlapping(env, input.requests, &mut all, &mut refused);
        sites = all.into();
    }
    let mut plan = ModulePlan { k: place.k, data: place.data, kernel, refused, ..ModulePlan::default() };
    (plan.pun_regions, plan.armed) = (pun_regions, armed);
    lay(input, env, place, &sites, &mut plan);
    let others = |s: &PatchedSite| {
        s.actions.iter().map(|a| (s.owner.request, a.request)).filter(|(a, b)| a != b).collect::<Vec<_>>()
    };
    plan.shares = sites.iter().filter(|s| s.actions.len() > 1).flat_map(others).collect();
    let tails = sites.iter().flat_map(|s| &s.actions).filter(|placed| placed.is_tail());
    plan.tails = tails.map(|placed| placed.request).collect();
    let alone = input.alone || plan.patches.len() < PARALLEL;
    finish(&mut plan, alone);
    Ok(plan)
}

type Span = (RemoteAddr, RemoteAddr);

/// Sum of what planning the functions gave.
#[derive(Default)]
struct Planned {
    sites: AllSites,
    /// Some windows overlap.
    overlap: bool,
    refused: Vec<Refused>,
    kernel: Vec<KernelSite>,
    pun_regions: Vec<Region>,
    armed: Vec<Refused>,
}

fn plan_sites(env: Env<'_>, input: &ModuleInput<'_>, own: Span) -> Planned {
    let order = by_function(input.requests);
    let trampolines = input.latency.filter(|latency| latency.trampolines.is_some());
    let new = || {
        let mut planner = Planner::new(env, input.bias, Puns::new(input.space, own, input.regions));
        planner.or_trampolines = trampolines.is_some_and(|latency| latency.or_trampolines);
        planner.by_trampolines = trampolines.is_some_and(|latency| latency.by_trampolines);
        planner.requests_of(order.iter().filter_map(|(_, w)| w.function));
        planner
    };
    if let Some(halves) = halves(&order, |f| env.image.function(f).len).filter(|_| !input.alone)
        && let Some(planned) = plan_halves(new, halves, env)
    {
        return planned;
    }
    let mut planner = new();
    planner.functions(&order);
    let overlap = overlap(spans(planner.sites.all()));
    Planned::new(planner, Vec::new(), overlap)
}

/// Plans both halves at once; `None` if they need the same bytes.
fn plan_halves<'a>(
    new: impl Fn() -> Planner<'a> + Sync,
    (first, second): (Half<'_>, Half<'_>),
    env: Env<'_>,
) -> Option<Planned> {
    let at = second[0].1.function.map_or(Svma(0), |f| env.image.function(f).start);
    let run = |part, low, high, room| {
        let mut planner = new();
        planner.claims.keep_within(low, high);
        planner.sites = room;
        planner.functions(part);
        let spans = spans(planner.sites.all());
        (planner, spans)
    };
    // This thread allocates the memory for both: the other thread's would be new, and the kernel would
    // have to clear it.
    let sites =
        |half: Half<'_>| half.iter().map(|(_, w)| sites_of(w, |f| env.map.exit_bound(f)) as usize).sum();
    let (mine, its): (usize, usize) = (sites(first), sites(second));
    let (all, its) = (Sites::with_capacity(mine + its), Sites::with_capacity(its));
    let ((mut a, mut all_spans), b) = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(second, at, Svma(u64::MAX), its));
        (run(first, Svma(0), at, all), other.join())
    });
    let mut is_apart = |b: &Planner<'_>| a.puns.merge(&b.puns) && a.claims.is_apart_from(&b.claims);
    let (b, its_spans) = b.ok().filter(|(b, _)| is_apart(b))?;
    all_spans.extend(its_spans);
    a.refused.extend(b.refused);
    a.kernel.extend(b.kernel);
    a.armed.extend(b.armed);
    let its = b.sites.into_all();
    Some(Planned::new(a, its, overlap(all_spans)))
}

impl Planned {
    /// What a planner found, and further sites.
    fn new(planner: Planner<'_>, further: Vec<PatchedSite>, overlap: bool) -> Self {
        let pun_regions = planner.puns.regions();
        let Planner { sites, refused, kernel, armed, .. } = planner;
        Self { sites: AllSites::new(sites.into_all(), further), overlap, refused, kernel, pun_regions, armed }
    }
}

type Half<'a> = &'a [(u32, ActionRequest)];

/// Two halves for two threads, where all requests are for functions. Cold parts lie anywhere, so the halves may get in
/// each other's way there; that is seen when they are put together. Where they meet depends on what the user asked for
/// alone, so a listing and an attach choose the same windows.
fn halves(order: Half<'_>, len: impl Fn(FunctionIndex) -> u64) -> Option<(Half<'_>, Half<'_>)> {
    if order.len() < PARALLEL || !order.iter().all(|(_, w)| w.function.is_some()) {
        return None;
    }
    // All of a function is looked at for its exits, a few instructions for its entry.
    let work = |w: &ActionRequest| match w.function {
        Some(function) if has_exits(w.action) => ENTRY + len(function),
        _ => ENTRY,
    };
    let asked = || order.iter().filter(|(_, w)| !w.action.is_for_us());
    let (all, mut sum) = (asked().map(|(_, w)| work(w)).sum::<u64>(), 0);
    let middle = asked().find(|(_, w)| {
        sum += work(w);
        sum > all / 2
    });
    let middle = middle?.1.function;
    let cut = order.partition_point(|(_, w)| w.function < middle);
    (cut != 0).then(|| order.split_at(cut))
}

/// Requests by function, in address order.
fn by_function(requests: &[ActionRequest]) -> Vec<(u32, ActionRequest)> {
    let mut order: Vec<(u32, ActionRequest)> = (0..).zip(requests.iter().copied()).collect();
    order.sort_by_key(|(_, w)| w.function);
    order
}

/// The places of windows, sorted. Sites are large, so these are compared in their stead.
fn spans(sites: &[PatchedSite]) -> Vec<(Svma, Svma)> {
    let mut spans: Vec<(Svma, Svma)> = sites.iter().map(|site| (site.start, site.end())).collect();
    spans.sort_unstable();
    spans
}

/// Whether some windows overlap. Their places are sorted, or are one sorted list behind another.
fn overlap(mut spans: Vec<(Svma, Svma)>) -> bool {
    // The stable sort finds lists that are sorted.
    spans.sort();
    spans.windows(2).any(|pair| pair[0].1 > pair[1].0)
}

/// Two functions may share code (cold parts, fragments). The later window gives way, and its requests are
/// refused as a whole. The sites are sorted.
fn drop_overlapping(
    env: Env<'_>,
    requests: &[ActionRequest],
    sites: &mut Vec<PatchedSite>,
    refused: &mut Vec<Refused>,
) {
    let probe = |request: u32| requests.get(request as usize).map_or(0, |w| w.probe);
    while let Some(pair) = sites.windows(2).find(|pair| pair[0].end() > pair[1].start) {
        let why = Refusal::Overlap { site: env.place(pair[1].start, JUMP), other: pair[0].start };
        let asked: Vec<u32> = pair[1].actions.iter().map(|a| a.request).collect();
        for request in asked {
            sites.retain_mut(|s| s.forget(request, probe));
            if !refused.iter().any(|r| r.request == request) {
                refused.push(Refused { probe: probe(request), request, why: why.clone() });
            }
        }
    }
}

fn finish(plan: &mut ModulePlan, alone: bool) {
    let ModulePlan { chunks, patches, guards, fixups, deliveries, calls, originals, refused, .. } = plan;
    // All are nearly sorted, which makes the stable sort fast.
    let mut by_patch = || {
        chunks.sort_by_key(|c| c.addr);
        patches.sort_by_key(|p| p.addr);
        calls.sort_by_key(|call| call.at);
        refused.sort_by_key(|r| r.request);
    };
    let mut by_instruction = || {
        guards.sort_by_key(|g| g.at);
        fixups.sort_by_key(|g| g.at);
        deliveries.sort();
        originals.sort_by_key(|o| o.copy);
    };
    if alone {
        by_instruction();
        by_patch();
    } else {
        std::thread::scope(|scope| {
            scope.spawn(by_instruction);
            by_patch();
        });
    }
    let stats = &mut plan.stats;
    stats.refused = plan.refused.len() as u32;
    stats.sites[Tactic::Kernel as usize] = plan.kernel.len() as u32;
    for patch in &plan.patches {
        stats.crossing += u32::from(patch.crosses_line);
        stats.guarded += u32::from(patch.needs_guard());
        stats.sites[patch.tactic as usize] += u32::from(patch.role != PatchRole::Island);
    }
}

#[cfg(test)]
mod tests {
    use trapline_image::FunctionIndex;
    use trapline_record::Svma;

    use super::{ENTRY, PARALLEL, halves};
    use crate::request::{Action, ActionRequest, Hold};

    fn requests(of: impl Fn(u32) -> Action) -> Vec<(u32, ActionRequest)> {
        let request =
            |n| ActionRequest { probe: n, latency: None, function: Some(FunctionIndex(n)), action: of(n) };
        (0..PARALLEL as u32).map(|n| (n, request(n))).collect()
    }

    #[test]
    fn two_threads_plan_what_is_of_functions() {
        let with = |action| requests(move |n| if n == 7 { action } else { Action::CountEntry });
        for action in [Action::CallEntry, Action::Hold(Hold::Prctl), Action::HoldAt(Svma(1), Hold::Prctl)] {
            let all = with(action);
            let (first, second) = halves(&all, |_| 1000).expect("all are of functions");
            assert_eq!((first.len(), first.len() + second.len()), (PARALLEL / 2, PARALLEL));
        }
        assert!(halves(&with(Action::CountEntry)[1..], |_| 1000).is_none(), "too few");
        let mut all = with(Action::CountAt(Svma(1)));
        assert!(halves(&all, |_| 1000).is_some());
        all[7].1.function = None;
        assert!(halves(&all, |_| 1000).is_none(), "one is of no function");
    }

    #[test]
    fn both_halves_are_as_much_work() {
        // The first functions are looked at in full, and longer than the others.
        let all = requests(|n| if n < 100 { Action::CountExits } else { Action::CountEntry });
        let (first, _) = halves(&all, |_| 9000 - ENTRY).expect("two halves");
        // 100 · 9000 of 100 · 9000 + 900 · 64.
        assert_eq!(first.len(), 53);
    }
}
