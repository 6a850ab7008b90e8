//! Plans a module on x86-64: chooses the space, plans each function, has the stubs laid out.
//!
//! In: [`ModuleInput`]. Out: [`ModulePlan`]. Does not: decide anything about a single site.

use super::code_region::{choose, need};
use super::env::{Env, observed};
use super::function::Planner;
use super::jump::JUMP;
use super::lay::lay;
use super::pun::Puns;
use super::site::PatchedSite;
use crate::input::ModuleInput;
use crate::plan::{KernelSite, ModulePlan, PatchRole, Refused, Region, Tactic};
use crate::refusal::{PlanError, Refusal};
use crate::request::{Action, ActionRequest};
use trapline_record::{RemoteAddr, Svma};

/// From this many requests on, several threads plan.
const PARALLEL: usize = 1000;
/// Upper bound of the threads that analyse functions.
const HELPERS: usize = 8;

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
    let own = (place.data.addr, place.code.end());
    let planned = match speculation.take().and_then(|sites| sites.fits(env.traits, env.calls, input.requests))
    {
        Some(sites) => Planned { sites, ..Planned::default() },
        None => plan_sites(env, input, own),
    };
    let Planned { mut sites, mut refused, kernel, pun_regions, armed } = planned;
    if overlap(&sites) {
        sites.sort_by_key(|s| s.start);
        drop_overlapping(env, input.requests, &mut sites, &mut refused);
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
    finish(&mut plan);
    Ok(plan)
}

type Span = (RemoteAddr, RemoteAddr);

/// Sum of what planning the functions gave.
#[derive(Default)]
struct Planned {
    sites: Vec<PatchedSite>,
    refused: Vec<Refused>,
    kernel: Vec<KernelSite>,
    pun_regions: Vec<Region>,
    armed: Vec<Refused>,
}

fn plan_sites(env: Env<'_>, input: &ModuleInput<'_>, own: Span) -> Planned {
    let order = by_function(input.requests);
    let new = || Planner::new(env, input.bias, Puns::new(input.space, own, input.regions));
    if let Some(halves) = halves(&order).filter(|_| !input.alone)
        && let Some(planned) = plan_halves(new, halves, env)
    {
        return planned;
    }
    let mut planner = new();
    let trampolines = input.latency.filter(|latency| latency.trampolines.is_some());
    planner.or_trampolines = trampolines.is_some_and(|latency| latency.or_trampolines);
    planner.by_trampolines = trampolines.is_some_and(|latency| latency.by_trampolines);
    if input.alone || order.len() < PARALLEL {
        planner.functions(&order);
    } else {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        planner.functions_with_help(&order, cpus.min(HELPERS));
    }
    planner.into()
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
        planner
    };
    // This thread allocates the memory for both: the other thread's would be new, and the kernel would
    // have to clear it.
    let (all, its) = (Vec::with_capacity(first.len() + second.len()), Vec::with_capacity(second.len()));
    let (mut a, b) = std::thread::scope(|scope| {
        let other = scope.spawn(|| run(second, at, Svma(u64::MAX), its));
        (run(first, Svma(0), at, all), other.join())
    });
    let b = b.ok().filter(|b| a.puns.merge(&b.puns))?;
    a.sites.extend(b.sites);
    a.refused.extend(b.refused);
    a.kernel.extend(b.kernel);
    Some(a.into())
}

impl From<Planner<'_>> for Planned {
    fn from(planner: Planner<'_>) -> Self {
        let pun_regions = planner.puns.regions();
        let Planner { sites, refused, kernel, armed, .. } = planner;
        Self { sites, refused, kernel, pun_regions, armed }
    }
}

type Half<'a> = &'a [(u32, ActionRequest)];

/// Two halves that cannot get in each other's way: no window of an entry, or of an instruction before a system
/// call (SYS-1), leaves its function. Where they meet depends on what the user asked for alone, so a listing and an
/// attach choose the same windows.
fn halves(order: &[(u32, ActionRequest)]) -> Option<(Half<'_>, Half<'_>)> {
    let stays = |w: &ActionRequest| {
        w.function.is_some() && (w.action.is_at_entry_alone() || matches!(w.action, Action::HoldAt(..)))
    };
    if order.len() < PARALLEL || !order.iter().all(|(_, w)| stays(w)) {
        return None;
    }
    let asked = || order.iter().filter(|(_, w)| !w.action.is_for_us());
    let middle = asked().nth(asked().count() / 2)?.1.function;
    let cut = order.partition_point(|(_, w)| w.function < middle);
    (cut != 0).then(|| order.split_at(cut))
}

/// Requests by function, in address order.
fn by_function(requests: &[ActionRequest]) -> Vec<(u32, ActionRequest)> {
    let mut order: Vec<(u32, ActionRequest)> = (0..).zip(requests.iter().copied()).collect();
    order.sort_by_key(|(_, w)| w.function);
    order
}

/// Whether some windows overlap. Sites are large, so only their places are sorted.
fn overlap(sites: &[PatchedSite]) -> bool {
    let mut spans: Vec<(Svma, Svma)> = sites.iter().map(|site| (site.start, site.end())).collect();
    spans.sort_unstable();
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

fn finish(plan: &mut ModulePlan) {
    // All are nearly sorted, which makes the stable sort fast.
    plan.chunks.sort_by_key(|c| c.addr);
    plan.patches.sort_by_key(|p| p.addr);
    plan.guards.sort_by_key(|g| g.at);
    plan.fixups.sort_by_key(|g| g.at);
    plan.deliveries.sort();
    plan.calls.sort_by_key(|call| call.at);
    plan.originals.sort_by_key(|o| o.copy);
    plan.refused.sort_by_key(|r| r.request);
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

    use super::{PARALLEL, halves};
    use crate::request::{Action, ActionRequest, Hold};

    fn requests(of: impl Fn(u32) -> Action) -> Vec<(u32, ActionRequest)> {
        let request =
            |n| ActionRequest { probe: n, latency: None, function: Some(FunctionIndex(n)), action: of(n) };
        (0..PARALLEL as u32).map(|n| (n, request(n))).collect()
    }

    #[test]
    fn two_threads_plan_entries_with_held_calls_among_them() {
        let with = |action| requests(move |n| if n == 7 { action } else { Action::CountEntry });
        for action in [Action::CallEntry, Action::Hold(Hold::Prctl), Action::HoldAt(Svma(1), Hold::Prctl)] {
            let all = with(action);
            let (first, second) = halves(&all).expect("no window leaves its function");
            assert_eq!((first.len(), first.len() + second.len()), (PARALLEL / 2, PARALLEL));
        }
        for action in [Action::CountExits, Action::CountAt(Svma(1))] {
            assert!(halves(&with(action)).is_none(), "{action:?}");
        }
        assert!(halves(&with(Action::CountEntry)[1..]).is_none(), "too few");
    }
}
