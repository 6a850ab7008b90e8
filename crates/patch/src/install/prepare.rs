//! Makes plans, and compares them with memory: step I3 of `protocol`.
//!
//! In: a request, a survey. Out: sites to write, with everything that their code needs, and refusals. A
//! request is refused as a whole if not all of its sites are as the file says: half a probe would miscount
//! (SAFE-5, PATCH-11).
//! Does not: change the process.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use trapline_plan::TrampolineCode;
use trapline_plan::filter::{Tally, TargetFilter};
use trapline_plan::x86_64::stub::trampoline_code_len;
use trapline_plan::{
    Action, ActionRequest, Charged, DataCounts, DataLayout, LatencyInput, ModuleInput, ModulePlan, Patch,
    PatchRole, PlanError, Refusal, Region, Tactic, TooLittle, Unwind, bounds, charge,
    layout::SMALL_REGIONS as MODULE_SMALL_REGIONS, plan_module, trampolines_for,
};
use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, Kind};
use trapline_record::latency::Stamps;
use trapline_record::tally::Shape;
use trapline_record::trampolines::Trampolines;
use trapline_tracee::Process;

use crate::attached::{Before, conflict};
use crate::both::{MANY, both};
use crate::error::PatchError;
use crate::install::survey::{Survey, shows_file};
use crate::memory::segment::MadeTrampolines;
use crate::memory::semaphore;
use crate::request::{AttachReport, Durations, Module, Options, Placed, Refused, Request, Why};
use crate::space::Still;
use crate::space::cpu::proven;
use crate::space::soft::Masked;
use crate::space::staged::is_staged;
use crate::space::write::{Outcome, verify};

/// A site to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreparedSite {
    pub(crate) module: u32,
    pub(crate) patch: Patch,
}

impl PreparedSite {
    pub(crate) fn entry(&self) -> Entry {
        let kind = match self.patch.role {
            PatchRole::Island => Kind::Island,
            PatchRole::ExitRet | PatchRole::ExitTail => Kind::Exit,
            PatchRole::Entry => Kind::Entry,
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
    /// Whether a thread may trap while it is written: at its head, or inside.
    pub(crate) fn takes_traps(&self) -> bool {
        self.patch.needs_guard() || self.may_trap()
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
    pub(crate) layout: DataLayout,
    /// Which bytes of the segment are allocated before a site is written, and by how much the others may
    /// grow.
    pub(crate) paid: [(u64, u64); 3],
    pub(crate) may_grow: Option<u64>,
    pub(crate) stamps: Option<Region>,
    /// The far part of the data, if there is one.
    pub(crate) far: Option<Region>,
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
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.sites.iter().map(PreparedSite::entry).chain(self.semaphores.iter().copied()).collect()
    }
}

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
    let Charged { layout, paid, may_grow } = match survey.code_region {
        Some((_, layout)) => Charged { layout, paid: [(0, 0); 3], may_grow: None },
        None => {
            let counts = counts(request, survey);
            let charged = charge(&counts, &survey.left);
            let charged = charged.map_err(|why| too_little(why, process.pid(), survey))?;
            let (have, wanted) = (charged.layout.rings.bytes, DataLayout::new(&counts).rings.bytes);
            report.small_rings = (have < wanted).then_some((have.into(), wanted.into()));
            charged
        }
    };
    let shape = stamps_of(request, &layout);
    let stamps = shape.map(|shape| find_room(process.pid(), shape.bytes(), survey)).transpose()?;
    let far = (layout.far() > 0).then(|| find_room(process.pid(), layout.far(), survey)).transpose()?;
    let any = |is: fn(&Action) -> bool| modules.iter().flat_map(|m| m.requests).any(|w| is(&w.action));
    let wanted = |role| modules.iter().flat_map(|m| m.requests).any(|w| w.action == role);
    let unwinding =
        any(|role| matches!(role, Action::Record { returns: true, .. } | Action::Tally { exits: true }));
    let Options { or_trampolines, by_trampolines, .. } = request.options;
    let by_trampolines = by_trampolines && unwinding;
    let trampolines = match before.trampolines {
        _ if !(wanted(Action::LatencyByTrampoline)
            || by_trampolines
            || or_trampolines && (wanted(Action::Latency) || unwinding)) =>
        {
            None
        }
        None => Some(find_trampolines(process.pid(), request.options.trampolines, survey)?),
        some => some,
    };
    let Durations { min_ticks, buckets, outermost, go_g } = request.durations;
    let latency = (stamps.is_some() || trampolines.is_some()).then(|| LatencyInput {
        stamps: stamps.map(|region| region.addr).unwrap_or_default(),
        shape: shape.unwrap_or_default(),
        min_ticks,
        buckets,
        outermost,
        go_g,
        trampolines,
        or_trampolines,
        by_trampolines,
        leads_on: unwinding,
    });
    let mut plans = Vec::with_capacity(modules.len());
    let mut room = SpaceLeft { far: far.map(|region| region.addr).unwrap_or_default(), small: SMALL_REGIONS };
    for (index, module) in modules.iter().enumerate() {
        let mut plan = plan_one(module, survey, &layout, latency, request, &mut room)?;
        let tails = plan.tails.iter().filter_map(|&request| module.requests.get(request as usize));
        report.tails.extend(tails.map(|request| request.probe));
        report.slotted.extend(plan.slotted.iter().map(|one| one.probe));
        take_refusals(index as u32, &mut plan, report);
        plans.push(plan);
    }
    report.timings.plan = start.elapsed();

    let start = Instant::now();
    let mut sites: Vec<PreparedSite> = Vec::with_capacity(plans.iter().map(|p| p.patches.len()).sum());
    for (index, plan) in plans.iter().enumerate() {
        sites.extend(plan.patches.iter().map(|&patch| PreparedSite { module: index as u32, patch }));
    }
    sites.sort_unstable_by_key(|s| s.patch.addr);
    let unfit = |some: Range<usize>| unfit(process, modules, survey, before.held, &plans, (&sites, some));
    let middle = sites.len() / 2;
    let bad = if request.options.alone || sites.len() < MANY {
        unfit(0..sites.len())
    } else {
        let (first, second) = both(|| unfit(0..middle), || unfit(middle..sites.len()));
        [first, second].concat()
    };
    refuse(&mut sites, bad, report);
    plans.iter_mut().for_each(|plan| plan.pun_regions.truncate(MODULE_SMALL_REGIONS as usize));
    let used: Vec<bool> =
        (0..plans.len() as u32).map(|index| sites.iter().any(|s| s.module == index)).collect();
    let shares = plans.iter().enumerate();
    let shares =
        shares.flat_map(|(n, plan)| plan.shares.iter().map(move |&(a, b)| (n as u32, a, b))).collect();
    let plans: Vec<ModulePlan> =
        plans.into_iter().zip(used).filter_map(|(plan, used)| used.then_some(plan)).collect();
    let is_placed = |probe| sites.iter().any(|s| s.patch.probe == probe);
    let semaphores = semaphore::entries(process, modules, is_placed)?;
    // Code that walks or copies stacks looks up return trampolines, so they have to exist.
    let walks = any(|role| matches!(role, Action::Record { stack, .. } if *stack != Unwind::None));
    let slotted = plans.iter().any(|plan| !plan.slotted.is_empty());
    let needed = by_trampolines || wanted(Action::LatencyByTrampoline) || walks || slotted;
    let trampolines = trampolines.filter(|_| needed && before.trampolines.is_none());
    let trampolines =
        trampolines.and_then(|trampolines| make_trampolines(modules.first()?, trampolines, survey, latency?));
    report.timings.verify = start.elapsed();
    Ok(Prepared { plans, sites, shares, layout, paid, may_grow, stamps, far, semaphores, trampolines })
}

/// Layout of a segment for this request alone.
pub(crate) fn layout(request: &Request<'_>, survey: &Survey) -> DataLayout {
    DataLayout::new(&counts(request, survey))
}

/// The error that users read.
fn too_little(why: TooLittle, pid: u32, survey: &Survey) -> PatchError {
    match (why, &survey.memory) {
        (TooLittle::Target { left, needed }, Some(of)) => PatchError::GroupFull {
            pid,
            group: of.group.clone(),
            file: of.file,
            limit_kib: of.limit >> 10,
            left_kib: left >> 10,
            needed_kib: needed >> 10,
        },
        (TooLittle::Target { left, needed } | TooLittle::Ours { left, needed }, _) => {
            PatchError::NoMemory { pid, left_kib: left >> 10, needed_kib: needed >> 10 }
        }
    }
}

/// Counts of a segment for this request alone.
fn counts(request: &Request<'_>, survey: &Survey) -> DataCounts {
    let lines = survey.traits.lines;
    let by_thread = request.options.by_thread;
    let filtered = !request.filters.is_empty();
    let ring = request.options.ring;
    let shapes = request.filters.iter().flatten().filter_map(|filter| filter.tally.as_ref());
    let tally = shapes.map(Tally::shape).fold(Shape::Nothing, Shape::or);
    let locked = survey.traits.rseq.is_none();
    let named = request.filters.iter().flatten().any(|filter| filter.by_name);
    let kept = DataCounts { lines, by_thread, ring, locked, filtered, tally, named, ..DataCounts::default() };
    let mut counts = kept;
    for module in request.modules {
        let more = bounds(module.image, module.map, &survey.traits, module.requests);
        // Counter and latency indices are distinct over all modules: the highest index counts, not the sum.
        let counters = counts.counters.max(more.counters);
        let latency = counts.latency.max(more.latency);
        counts = DataCounts { counters, latency, lines, ..counts.plus(more) };
    }
    // Copying a text may fault at one place.
    let texts = request.filters.iter().flatten().filter_map(|filter| filter.tally.as_ref());
    let texts: u32 = texts.map(|tally| tally.texts().count_ones()).sum();
    counts.texts |= texts > 0;
    counts.guards += texts;
    // Each patch may need a guard at its head.
    counts.guards += counts.patches;
    counts.patches += request.modules.iter().map(|m| m.semaphores.len() as u32).sum::<u32>();
    counts
}

/// Shape of the stamp memory. Durations need stamps; calls about which a filter decides need marks in the
/// same memory. If their return decides, records lie there.
fn stamps_of(request: &Request<'_>, layout: &DataLayout) -> Option<Stamps> {
    let filter = |one: &ActionRequest| request.filters.get(one.probe as usize).and_then(Option::as_ref);
    let one = |request: &ActionRequest| match request.action {
        Action::Latency => true,
        Action::Record { returns: true, .. } => filter(request).is_some(),
        Action::Tally { .. } => filter(request).is_some_and(|filter| filter.late.is_some()),
        _ => false,
    };
    let late = request.filters.iter().flatten().any(|filter| filter.late.is_some());
    let left = request.filters.iter().flatten().map(TargetFilter::left_bytes).max().unwrap_or(0);
    let needed = request.modules.iter().flat_map(|m| m.requests).any(one);
    needed.then(|| if late { Stamps::of(layout.rings.slot.max(left)) } else { Stamps::default() })
}

/// Finds room anywhere, for what code reaches by a whole address.
fn find_room(pid: u32, len: u64, survey: &mut Survey) -> Result<Region, PatchError> {
    let addr = survey.space.find(len).ok_or(PatchError::NoRoomForStamps { pid, len })?;
    survey.space.occupy(addr, addr + len);
    Ok(Region { addr, len })
}

/// Finds room for return trampolines: their code, then their entries.
fn find_trampolines(pid: u32, count: u32, survey: &mut Survey) -> Result<Trampolines, PatchError> {
    let (least, most) = Trampolines::LIMITS;
    let unplaced = Trampolines { code: 0, table: 0, count: count.clamp(least, most).next_power_of_two() };
    let code = trampoline_code_len(&unplaced).next_multiple_of(4096);
    let len = code + unplaced.table_len();
    let addr = survey.space.find(len).ok_or(PatchError::NoRoomForStamps { pid, len })?;
    survey.space.occupy(addr, addr + len);
    Ok(Trampolines { code: addr.0, table: addr.0 + code, ..unplaced })
}

fn make_trampolines(
    module: &Module<'_>,
    trampolines: Trampolines,
    survey: &Survey,
    input: LatencyInput,
) -> Option<(MadeTrampolines, Vec<u8>)> {
    let TrampolineCode { bytes, shared, unwind } =
        trampolines_for(module.image, &survey.traits, trampolines, &input)?;
    Some((MadeTrampolines { trampolines, shared, unwind }, bytes))
}

fn plan_one(
    module: &Module<'_>,
    survey: &mut Survey,
    layout: &DataLayout,
    latency: Option<LatencyInput>,
    request: &Request<'_>,
    room: &mut SpaceLeft,
) -> Result<ModulePlan, PatchError> {
    let plan = plan_module(&ModuleInput {
        image: module.image,
        bias: module.bias,
        map: module.map,
        traits: &survey.traits,
        space: &survey.space,
        code_region: survey.code_region.map(|code_region| code_region.0),
        alone: request.options.alone,
        layout,
        far: room.far,
        regions: room.small,
        latency,
        calls: request.calls,
        filters: request.filters,
        requests: module.requests,
    });
    let plan = match plan {
        Ok(plan) => plan,
        // The other modules go without it. In our own process there is another way (`own::code_region`).
        Err(PlanError::NoSpace { text, need, tried }) if request.calls.is_none() => {
            return Ok(without_room(module.requests, &Refusal::NoSpace { text, need, tried }));
        }
        Err(source) => return Err(PatchError::Plan { module: module.name.to_owned(), source }),
    };
    room.small = room.small.saturating_sub(plan.pun_regions.len() as u32);
    if !plan.patches.is_empty() && survey.code_region.is_none() {
        let regions = [plan.data, plan.code];
        for region in regions.iter().chain(&plan.pun_regions).filter(|r| r.len > 0) {
            survey.space.occupy(region.addr, region.end());
        }
    }
    Ok(plan)
}

/// What is left for the modules that are planned next.
struct SpaceLeft {
    /// Where the far part of the data lies.
    far: RemoteAddr,
    /// Number of small regions that all modules may still take: a process may have only a limited number of
    /// mappings.
    small: u32,
}

/// Upper bound of a batch's small regions.
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
                plan.slotted
                    .iter()
                    .find(|one| one.request == r.request && one.why.is_of_exits())
                    .map_or(r.why, |one| one.why.clone()),
            ),
        }
    }));
    report.kernel.extend(plan.kernel.iter().map(|&k| (module, k)));
}

/// Whether a patch is still in place. Its library may have been unloaded, and loaded there again.
fn is_live(process: &Process, patch: &Patch) -> bool {
    let len = usize::from(patch.len);
    let mut bytes = [0; 8];
    process.read(patch.addr, &mut bytes[..len]).is_ok() && bytes[..len] == patch.new[..len]
}

/// Indices of the sites that may not be written, each with the reason.
fn unfit(
    process: &Process,
    modules: &[Module<'_>],
    survey: &Survey,
    held: &[Patch],
    plans: &[ModulePlan],
    (sites, some): (&[PreparedSite], Range<usize>),
) -> Vec<(usize, Why)> {
    let is_changing = |old: &Patch| survey.soft.contains_key(&old.addr.0);
    let mut bad = Vec::new();
    let entries: Vec<Entry> = sites[some.clone()].iter().map(PreparedSite::entry).collect();
    let mut space = Masked { space: Still { process }, soft: &survey.soft };
    let present = verify(&mut space, &entries);
    // As many as the list of regions has room for. Puns respect that when they are planned, islands do not.
    let room = MODULE_SMALL_REGIONS as usize;
    for (index, outcome) in some.zip(present) {
        let site = &sites[index];
        let Patch { addr, len, old, head, crosses_line, .. } = site.patch;
        let bytes = |b: [u8; 8]| b[..usize::from(len)].to_vec();
        let puns: &[Region] = &plans[site.module as usize].pun_regions;
        let why = match outcome {
            Outcome::Unreachable => Why::NotMapped { addr },
            _ if !shows_file(&survey.maps, &modules[site.module as usize], addr, len.into()) => {
                Why::NotMapped { addr }
            }
            _ if conflict(held, &site.patch)
                .is_some_and(|old| !is_changing(old) && is_live(process, old)) =>
            {
                Why::Held { addr }
            }
            Outcome::Differs { found } => Why::Differs { addr, file: bytes(old), found: bytes(found) },
            _ if puns.len() > room && puns[room..].iter().any(|r| r.contains(head)) => {
                Why::TooManyRegions { addr }
            }
            _ => match survey.no_traps {
                Some(because) if crosses_line => Why::CrossesLine { addr, because },
                _ => continue,
            },
        };
        bad.push((index, why));
    }
    bad
}

/// Removes all sites of a request if one of them is unfit, and reports each request once.
pub(crate) fn refuse(sites: &mut Vec<PreparedSite>, bad: Vec<(usize, Why)>, report: &mut AttachReport) {
    if bad.is_empty() {
        return;
    }
    let mut requests: HashMap<(u32, u32), Refused> = HashMap::new();
    for (index, why) in bad {
        let site = &sites[index];
        requests.entry((site.module, site.patch.request)).or_insert_with(|| site.refused(why));
    }
    sites.retain(|s| !requests.contains_key(&(s.module, s.patch.request)));
    let mut refused: Vec<Refused> = requests.into_values().collect();
    refused.sort_unstable_by_key(|r| (r.module, r.request));
    report.refused.extend(refused);
}
