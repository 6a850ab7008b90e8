//! Makes plans, and compares them with memory: step I3 of `protocol`.
//!
//! In: a request, a survey. Out: sites to write, with everything that their code needs, and refusals.
//! Does not: change the process, or decide which sites may be written (see `compare`).

use std::time::Instant;

use trapline_plan::TrampolineCode;
use trapline_plan::{
    Action, ActionRequest, LatencyInput, ModuleInput, ModulePlan, Patch, PlanError, Refusal,
    layout::SMALL_REGIONS as MODULE_SMALL_REGIONS, plan_module, trampolines_for,
};
use trapline_record::Svma;
use trapline_tracee::Process;

use crate::batches::Before;
use crate::error::PatchError;
use crate::install::compare::{Compared, refuse};
use crate::install::layout::Room;
use crate::install::prepared::{Prepared, PreparedSite};
use crate::install::survey::Survey;
use crate::memory::segment::MadeTrampolines;
use crate::memory::semaphore;
use crate::report::{AttachReport, Refused};
use crate::request::{Module, Request};
use crate::why::Why;

/// Plans all modules and compares all sites with memory.
pub(crate) fn prepare(
    process: &Process,
    request: &Request<'_>,
    survey: &mut Survey,
    before: Before<'_>,
    report: &mut AttachReport,
) -> Result<Prepared, PatchError> {
    let start = Instant::now();
    let modules = request.modules;
    let room = Room::find(process.pid(), request, survey, before.trampolines, report)?;
    let mut plans = plan_all(request, survey, &room, before.held, report)?;
    report.timings.plan = start.elapsed();

    let start = Instant::now();
    let mut sites = sites_of(&plans);
    let compared = Compared { process, modules, survey, held: before.held, plans: &plans };
    let bad = compared.unfit(&sites, request.options.alone);
    refuse(&mut sites, bad, report);
    plans.iter_mut().for_each(|plan| plan.pun_regions.truncate(MODULE_SMALL_REGIONS as usize));
    let shares = (0..).zip(&plans);
    let shares = shares.flat_map(|(n, plan)| plan.shares.iter().map(move |&(a, b)| (n, a, b))).collect();
    let plans = used(plans, &sites);
    let is_placed = |probe| sites.iter().any(|s| s.patch.probe == probe);
    let semaphores = semaphore::entries(process, modules, is_placed)?;
    let trampolines = match before.trampolines {
        None => make_trampolines(request, &plans, survey, room.latency),
        Some(_) => None,
    };
    report.timings.verify = start.elapsed();
    Ok(Prepared { plans, sites, shares, room, semaphores, trampolines })
}

/// Plans of all modules, in the order of the request.
fn plan_all(
    request: &Request<'_>,
    survey: &mut Survey,
    room: &Room,
    held: &[Patch],
    report: &mut AttachReport,
) -> Result<Vec<ModulePlan>, PatchError> {
    let mut plans = Vec::with_capacity(request.modules.len());
    let mut left = SMALL_REGIONS;
    for (index, module) in (0..).zip(request.modules) {
        let patched = patched(held, module);
        let mut plan = plan_one(module, survey, (room, &patched), request, &mut left)?;
        let tails = plan.tails.iter().filter_map(|&request| module.requests.get(request as usize));
        report.tails.extend(tails.map(|request| request.probe));
        report.armed.extend(plan.armed.iter().map(|one| one.probe));
        take_refusals(index, &mut plan, report);
        plans.push(plan);
    }
    Ok(plans)
}

/// All their patches, sorted by address.
fn sites_of(plans: &[ModulePlan]) -> Vec<PreparedSite> {
    let mut sites = Vec::with_capacity(plans.iter().map(|plan| plan.patches.len()).sum());
    for (module, plan) in (0..).zip(plans) {
        sites.extend(plan.patches.iter().map(|&patch| PreparedSite { module, patch }));
    }
    sites.sort_unstable_by_key(|site: &PreparedSite| site.patch.addr);
    sites
}

/// The plans of which some site is left.
fn used(plans: Vec<ModulePlan>, sites: &[PreparedSite]) -> Vec<ModulePlan> {
    let is_used = |module: u32| sites.iter().any(|site| site.module == module);
    (0..).zip(plans).filter_map(|(module, plan)| is_used(module).then_some(plan)).collect()
}

/// Return trampolines, if some call uses them. Code that walks or copies stacks looks them up, so they have to
/// exist for it.
fn make_trampolines(
    request: &Request<'_>,
    plans: &[ModulePlan],
    survey: &Survey,
    latency: Option<LatencyInput>,
) -> Option<(MadeTrampolines, Vec<u8>)> {
    let input = latency?;
    let trampolines = input.trampolines?;
    let needed = input.by_trampolines
        || request.wants(Action::LatencyByTrampoline)
        || request.reads_stacks()
        || plans.iter().any(|plan| !plan.armed.is_empty());
    let image = request.modules.first().filter(|_| needed)?.image;
    let TrampolineCode { bytes, shared, unwind } =
        trampolines_for(image, &survey.traits, trampolines, &input)?;
    Some((MadeTrampolines { trampolines, shared, unwind }, bytes))
}

/// Ranges of the module that patches in place need.
fn patched(held: &[Patch], module: &Module<'_>) -> Vec<(Svma, Svma)> {
    let loads = module.image.loads().iter();
    let ranges = loads.map(|load| (module.bias.live(load.svma), module.bias.live(load.svma + load.memsz)));
    let is_its = |patch: &&Patch| ranges.clone().any(|(start, end)| (start..end).contains(&patch.addr));
    let needs = held.iter().filter(is_its).map(Patch::needs);
    needs.map(|(start, end)| (module.bias.stated(start), module.bias.stated(end))).collect()
}

/// Plans one module. `left`: number of small regions that it and the modules after it may take.
fn plan_one(
    module: &Module<'_>,
    survey: &mut Survey,
    (room, patched): (&Room, &[(Svma, Svma)]),
    request: &Request<'_>,
    left: &mut u32,
) -> Result<ModulePlan, PatchError> {
    let plan = plan_module(&ModuleInput {
        image: module.image,
        bias: module.bias,
        map: module.map,
        traits: &survey.traits,
        space: &survey.space,
        code_region: survey.code_region.map(|code_region| code_region.0),
        patched,
        alone: request.options.alone,
        layout: &room.layout,
        far: room.far.map(|region| region.addr).unwrap_or_default(),
        regions: *left,
        own_page: room.own.map(|region| region.addr).unwrap_or_default(),
        latency: room.latency,
        calls: request.calls,
        filters: request.filters,
        requests: module.requests,
    });
    let plan = match plan {
        Ok(plan) => plan,
        // The other modules go without it. In our own process there is another way (`own::choice`).
        Err(PlanError::NoSpace { text, need, tried }) if request.calls.is_none() => {
            return Ok(without_room(module.requests, &Refusal::NoSpace { text, need, tried }));
        }
        Err(source) => return Err(PatchError::Plan { module: module.name.to_owned(), source }),
    };
    *left = left.saturating_sub(plan.pun_regions.len() as u32);
    if !plan.patches.is_empty() && survey.code_region.is_none() {
        let regions = [plan.data, plan.code];
        for region in regions.iter().chain(&plan.pun_regions).filter(|r| r.len > 0) {
            survey.space.occupy(region.addr, region.end());
        }
    }
    Ok(plan)
}

/// Upper bound of a batch's small regions: a process may have only a limited number of mappings.
const SMALL_REGIONS: u32 = 4096;

/// The plan of a module in which nothing can be placed.
fn without_room(requests: &[ActionRequest], why: &Refusal) -> ModulePlan {
    let refused = (0..).zip(requests).map(|(request, one)| trapline_plan::Refused {
        probe: one.probe,
        request,
        why: why.clone(),
    });
    ModulePlan { refused: refused.collect(), ..ModulePlan::default() }
}

fn take_refusals(module: u32, plan: &mut ModulePlan, report: &mut AttachReport) {
    let refused = plan.refused.drain(..);
    report.refused.extend(refused.map(|r| {
        Refused {
            module,
            probe: r.probe,
            request: r.request,
            // Exits are what was requested.
            why: Why::Plan(
                plan.armed
                    .iter()
                    .find(|one| one.request == r.request && one.why.is_of_exits())
                    .map_or(r.why, |one| one.why.clone()),
            ),
        }
    }));
    report.kernel.extend(plan.kernel.iter().map(|&k| (module, k)));
}
