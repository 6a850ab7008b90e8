//! A module's plan, put together: choose the space, plan each function, lay the stubs.
//!
//! In: [`ModuleInput`]. Out: [`ModulePlan`]. Does not: decide anything about a single site.

use crate::codemap::CodeMap;
use crate::layout::{DataCounts, DataLayout};
use crate::plan::{Chunk, KernelSite, ModulePlan, Patch, PatchRole, Refused, Region, Tactic};
use crate::refusal::{PlanError, Refusal};
use crate::request::{LatencyInput, ModuleInput, ProcessTraits, Role, Want};
use crate::space::{AddressSpace, Need, PAGE, Place, choose};
use crate::x86_64::Env;
use crate::x86_64::emit::{Emitter, Setting};
use crate::x86_64::function::Planner;
use crate::x86_64::pun::Puns;
use crate::x86_64::site::{Reach, Site};
use crate::x86_64::stub::{self, Buckets, Latency, Machine, Rings, ThreadId, Threads};
use crate::x86_64::window::JUMP;
use trapline_image::{FunctionIndex, Image, ImageKind};
use trapline_record::addr::Bias;
use trapline_record::ring::RingArea;
use trapline_record::{RemoteAddr, Svma, control};

/// Bytes of arena that a deed takes at most, with the displaced instructions around it.
const ARENA_PER_SITE: u64 = 1024;
/// Bytes of code that a counted entry takes, about.
const BYTES_PER_SITE: usize = 224;
/// From this many wants on, two threads plan.
const PARALLEL: usize = 1000;
/// Bytes left for the batch's own code.
const SPARE: u64 = PAGE;
/// Instruction boundaries inside a window, at most, and its head.
const GUARDS_PER_PATCH: u32 = 5;

/// Upper bounds for [`DataCounts`]: patches and guards from the map, counters and latency areas from the highest index
/// in `wants`, lines from `traits`.
#[must_use]
pub fn bounds(image: &Image, map: &CodeMap, traits: &ProcessTraits, wants: &[Want]) -> DataCounts {
    let exits = |want: &Want| want.function.map_or(0, |f| map.exit_bound(f));
    let sites: u32 = wants
        .iter()
        .map(|want| match want.role {
            Role::CountEntry
            | Role::CountAt(_)
            | Role::CallEntry
            | Role::CallAt(_)
            | Role::RecordAt(_)
            | Role::Record { returns: false, .. } => 1,
            Role::CountExits | Role::CallExits => exits(want),
            Role::Latency | Role::Record { returns: true, .. } => 1 + exits(want),
        })
        .sum();
    let timed = wants.iter().filter(|w| has_exits(w.role)).count();
    let sites = sites + fragments_bound(image, timed);
    let above = |index: Option<u32>| index.map_or(0, |i| i + 1);
    DataCounts {
        patches: 2 * sites,
        guards: 2 * sites * GUARDS_PER_PATCH,
        counters: above(wants.iter().filter(|w| !w.role.calls()).map(|w| w.probe).max()),
        latency: above(wants.iter().filter_map(|w| w.latency).max()),
        lines: traits.lines,
        by_thread: false,
        slot: wants.iter().map(|w| slot(w.role)).max().unwrap_or(0),
        ring: 0,
    }
}

/// Bytes that a record takes.
const fn slot(role: Role) -> u32 {
    match role {
        Role::Record { values, .. } => RingArea::slot_for(values as usize),
        Role::RecordAt(_) => RingArea::slot_for(0),
        _ => 0,
    }
}

const fn has_exits(role: Role) -> bool {
    matches!(role, Role::CountExits | Role::Latency | Role::CallExits | Role::Record { returns: true, .. })
}

/// Exits in fragments that `timed` functions may turn out to own: 64 for each of a few, and never more than 16 for each
/// fragment of the file, since a fragment has one owner.
fn fragments_bound(image: &Image, timed: usize) -> u32 {
    let most = (64 * timed).min(16 * image.fragments().len());
    u32::try_from(most).unwrap_or(u32::MAX / 16)
}

/// Plans all wants of one module.
///
/// # Errors
/// [`PlanError`] when nothing at all can be planned; what fails for one want is in [`ModulePlan::refused`].
pub fn plan_module(input: &ModuleInput<'_>) -> Result<ModulePlan, PlanError> {
    check(input)?;
    let env = Env { image: input.image, map: input.map, traits: input.traits, calls: input.calls };
    let place = choose(input.space, &need(input)?)?;
    let own = (place.data.addr, place.code.end());
    let order = by_function(input.wants);
    let planned = plan_sites(env, input, own, &order);
    let Planned { mut sites, mut refused, kernel, pun_regions } = planned;
    sites.sort_by_key(|s| s.start);
    drop_overlapping(env, input.wants, &mut sites, &mut refused);
    let mut plan = ModulePlan { k: place.k, data: place.data, kernel, refused, ..ModulePlan::default() };
    plan.pun_regions = pun_regions;
    emit(input, env, place, &sites, &mut plan);
    let others =
        |s: &Site| s.acts.iter().map(|a| (s.owner.want, a.want)).filter(|(a, b)| a != b).collect::<Vec<_>>();
    plan.shares = sites.iter().filter(|s| s.acts.len() > 1).flat_map(others).collect();
    finish(&mut plan);
    Ok(plan)
}

/// What planning functions adds up to.
struct Planned {
    sites: Vec<Site>,
    refused: Vec<Refused>,
    kernel: Vec<KernelSite>,
    pun_regions: Vec<Region>,
}

type Span = (RemoteAddr, RemoteAddr);

fn plan_sites(env: Env<'_>, input: &ModuleInput<'_>, own: Span, order: &[(u32, Want)]) -> Planned {
    let new = || Planner::new(env, input.bias, Puns::new(input.space, own));
    if let Some((first, second)) = halves(order) {
        let at = second[0].1.function.map_or(Svma(0), |f| input.image.function(f).start);
        let run = |part, low, high| {
            let mut planner = new();
            planner.claims.keep_within(low, high);
            planner.sites.reserve(order.len());
            planner.functions(part);
            planner
        };
        let (mut a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(second, at, Svma(u64::MAX)));
            (run(first, Svma(0), at), other.join())
        });
        if let Ok(b) = b
            && a.puns.merge(&b.puns)
        {
            a.sites.extend(b.sites);
            a.refused.extend(b.refused);
            a.kernel.extend(b.kernel);
            return a.into();
        }
    }
    let mut planner = new();
    planner.functions(order);
    planner.into()
}

impl From<Planner<'_>> for Planned {
    fn from(planner: Planner<'_>) -> Self {
        let pun_regions = planner.puns.regions();
        Self { sites: planner.sites, refused: planner.refused, kernel: planner.kernel, pun_regions }
    }
}

type Half<'a> = &'a [(u32, Want)];

/// Two halves that cannot be in each other's way: entries only, so that no window leaves its function.
fn halves(order: &[(u32, Want)]) -> Option<(Half<'_>, Half<'_>)> {
    let entry = |w: &Want| matches!(w.role, Role::CountEntry | Role::CallEntry) && w.function.is_some();
    if order.len() < PARALLEL || !order.iter().all(|(_, w)| entry(w)) {
        return None;
    }
    let middle = order[order.len() / 2].1.function;
    let cut = order.partition_point(|(_, w)| w.function < middle);
    (cut != 0).then(|| order.split_at(cut))
}

fn check(input: &ModuleInput<'_>) -> Result<(), PlanError> {
    let outside = |what, index, have| {
        if index < have { Ok(()) } else { Err(PlanError::OutsideLayout { what, index, have }) }
    };
    for want in input.wants {
        if want.role.calls() {
            let callee = input.calls.and_then(|calls| calls.callees.get(want.probe as usize));
            callee.ok_or(PlanError::NoCallee { probe: want.probe })?;
        } else {
            outside("counter", want.probe, input.layout.counters.count)?;
        }
        if let Some(latency) = want.latency {
            outside("latency area", latency, input.layout.latency_count)?;
        }
    }
    let timed = input.wants.iter().any(|w| w.role == Role::Latency);
    if timed && input.latency.is_none() { Err(PlanError::NoStamps) } else { Ok(()) }
}

/// Wants by function, in address order.
fn by_function(wants: &[Want]) -> Vec<(u32, Want)> {
    let mut order: Vec<(u32, Want)> = (0..).zip(wants.iter().copied()).collect();
    order.sort_by_key(|(_, w)| w.function);
    order
}

/// What the module needs room for. The mirror covers the functions wanted only.
fn need(input: &ModuleInput<'_>) -> Result<Need, PlanError> {
    let live = |at: Svma| input.bias.live(at);
    let loads = input.image.loads();
    let low = loads.iter().map(|s| s.svma).min().ok_or(PlanError::NoText)?;
    let high = loads.iter().map(|s| s.svma + s.memsz).max().ok_or(PlanError::NoText)?;
    let mut text = (Svma(u64::MAX), Svma(0));
    let mut cover = |start: Svma, end: Svma| text = (text.0.min(start), text.1.max(end));
    for want in input.wants {
        if let Role::CountAt(at) | Role::CallAt(at) | Role::RecordAt(at) = want.role {
            cover(at, at + 16);
        }
        let Some(function) = want.function.map(|f| input.image.function(f)) else { continue };
        cover(function.start, function.end());
        function.cold.iter().for_each(|&(start, len)| cover(start, start + len));
    }
    if input.wants.iter().any(|w| has_exits(w.role)) {
        input.image.fragments().iter().for_each(|&(start, len)| cover(start, start + len));
    }
    if text.0 >= text.1 {
        text = (low, low + PAGE);
    }
    let near = 256; // an island may lie this far off, and padding behind the last function is covered too
    let counts = bounds(input.image, input.map, input.traits, input.wants);
    Ok(Need {
        module: (live(low), live(high)),
        text: (live(text.0 - near.min(text.0.0)), live(text.1 + near)),
        data: input.layout.len,
        arena: (u64::from(counts.patches / 2) * ARENA_PER_SITE + SPARE).next_multiple_of(PAGE)
            + if input.calls.is_some() { 2 * PAGE } else { PAGE },
    })
}

/// Two functions may share code (cold parts, fragments). The later window gives way, and its want is refused whole.
fn drop_overlapping(env: Env<'_>, wants: &[Want], sites: &mut Vec<Site>, refused: &mut Vec<Refused>) {
    let probe = |want: u32| wants.get(want as usize).map_or(0, |w| w.probe);
    while let Some(pair) = sites.windows(2).find(|pair| pair[0].end() > pair[1].start) {
        let why = Refusal::Overlap { site: env.place(pair[1].start, JUMP), other: pair[0].start };
        let asked: Vec<u32> = pair[1].acts.iter().map(|a| a.want).collect();
        for want in asked {
            sites.retain_mut(|s| s.forget(want, probe));
            if !refused.iter().any(|r| r.want == want) {
                refused.push(Refused { probe: probe(want), want, why: why.clone() });
            }
        }
    }
}

fn emit(input: &ModuleInput<'_>, env: Env<'_>, place: Place, sites: &[Site], plan: &mut ModulePlan) {
    let machine = Machine { rseq: input.traits.rseq, rdpid: input.traits.rdpid, lines: input.traits.lines };
    let latency = input.latency.map(|latency| timing(latency, input.layout, place));
    let threads = by_thread(input.traits.thread_id, input.layout, place);
    let rings = rings(input.traits.thread_id, input.layout, place);
    let (mirror_end, mut shared) = (place.arena, Vec::new());
    let gate = input.calls.map(|calls| stub::gate(&mut shared, mirror_end.0, &calls.functions));
    // The gate's page, then what belongs to single sites.
    let place = Place { arena: gate.map_or(mirror_end, |_| mirror_end + PAGE), ..place };
    let layout = input.layout;
    let set =
        Setting { env, bias: input.bias, place, mirror_end, layout, machine, latency, threads, rings, gate };
    let landings = landings(sites, input.bias, place.k, place.arena);
    let limit = RemoteAddr(place.code.end().0 - SPARE);
    let middle = if landings.len() < PARALLEL { landings.len() } else { landings.len() / 2 };
    let (first, second) = landings.split_at(middle);
    let between = place.arena + first.len() as u64 * ARENA_PER_SITE;
    let end = second.first().map_or(mirror_end, |l| l.0);
    let (a, b) = std::thread::scope(|scope| {
        let other = (!second.is_empty())
            .then(|| scope.spawn(|| lay(set, sites, second, mirror_end, (between, limit), second.len())));
        let own = lay(set, sites, first, end, (place.arena, between.min(limit)), landings.len());
        (own, other.and_then(|t| t.join().ok()))
    });
    let used = b.as_ref().map_or(a.arena, |b| b.arena);
    let mut lost = a.lost;
    plan.join(a.part);
    if let Some(b) = b {
        plan.join(b.part);
        lost.extend(b.lost);
    }
    if gate.is_some() {
        debug_assert!(shared.len() as u64 <= PAGE, "the gate takes {} bytes", shared.len());
        let (off, len) = (plan.bytes.len() as u32, shared.len() as u32);
        plan.chunks.push(Chunk { addr: mirror_end, off, len });
        plan.bytes.append(&mut shared);
    }
    let used = RemoteAddr(used.0.next_multiple_of(PAGE));
    plan.spare = Region { addr: used, len: SPARE };
    plan.code = Region { addr: place.code.addr, len: used + SPARE - place.code.addr };
    withdraw(plan, sites, input.wants, lost);
}

/// Code for some of the sites.
struct Laid {
    part: ModulePlan,
    lost: Vec<Refused>,
    /// First free byte of its arena.
    arena: RemoteAddr,
}

/// Lays the sites whose ways in are `landings`; the next one after them is at `end`. Room is made for `expect` of them, since
/// others are joined to the first part.
fn lay(
    set: Setting<'_>,
    sites: &[Site],
    landings: &[(RemoteAddr, u32)],
    end: RemoteAddr,
    arena: Span,
    expect: usize,
) -> Laid {
    let mut part = ModulePlan::default();
    part.bytes.reserve(expect * BYTES_PER_SITE);
    part.chunks.reserve(expect * 2);
    part.patches.reserve(expect);
    part.guards.reserve(expect * 2);
    let mut emitter = Emitter::new(set, &mut part, arena);
    let mut lost = Vec::new();
    for (n, &(landing, site)) in landings.iter().enumerate() {
        let next = landings.get(n + 1).map_or(end, |l| l.0).min(set.mirror_end);
        let site = &sites[site as usize];
        if let Err(why) = emitter.site(site, landing, next.0.saturating_sub(landing.0)) {
            // Each want that had a deed there is refused, not only the one that came first.
            let mut asked: Vec<u32> = site.acts.iter().map(|a| a.want).collect();
            asked.dedup();
            let new = asked.into_iter().map(|want| Refused { probe: 0, want, why: why.clone() });
            lost.extend(new);
        }
    }
    let arena = emitter.finish();
    Laid { part, lost, arena }
}

/// Takes out all patches of wants of which a part could not be laid. Whoever shares a patch with one of them loses it
/// too, and is refused for the same reason.
fn withdraw(plan: &mut ModulePlan, sites: &[Site], wants: &[Want], mut lost: Vec<Refused>) {
    if lost.is_empty() {
        return;
    }
    let mut known = 0;
    while known < lost.len() {
        let Refused { want, why, .. } = lost[known].clone();
        known += 1;
        for site in sites.iter().filter(|s| s.acts.iter().any(|a| a.want == want)) {
            for act in &site.acts {
                if !lost.iter().any(|r| r.want == act.want) {
                    lost.push(Refused { probe: 0, want: act.want, why: why.clone() });
                }
            }
        }
    }
    plan.patches.retain(|p| !lost.iter().any(|r| r.want == p.want));
    for mut refused in lost {
        refused.probe = wants.get(refused.want as usize).map_or(0, |w| w.probe);
        if !plan.refused.iter().any(|r| r.want == refused.want) {
            plan.refused.push(refused);
        }
    }
    let patches = &plan.patches;
    let inside = |p: &Patch, at: RemoteAddr| p.addr < at && at < p.addr + u64::from(p.len);
    plan.guards.retain(|g| patches.iter().any(|p| inside(p, g.at)));
}

fn timing(input: LatencyInput, layout: &DataLayout, place: Place) -> Latency {
    Latency {
        area: place.data.addr.0 + layout.latency_off,
        functions: layout.latency_count,
        stamps: input.stamps.0,
        missed: place.data.addr.0 + control::at::MISSED,
        min_ticks: input.min_ticks,
        buckets: input.buckets,
        outermost: input.outermost,
        go: input.go_g,
    }
}

fn by_thread(id: ThreadId, layout: &DataLayout, place: Place) -> Option<Threads> {
    let area = layout.threads;
    (!area.is_empty()).then(|| Threads { area, tags: place.data.addr.0 + area.off, id })
}

fn rings(id: ThreadId, layout: &DataLayout, place: Place) -> Option<Rings> {
    let area = layout.rings;
    (!area.is_empty()).then(|| Rings { area, base: place.data.addr.0 + area.off, id })
}

/// Where each site's way in begins, in address order.
fn landings(sites: &[Site], bias: Bias, k: i32, arena: RemoteAddr) -> Vec<(RemoteAddr, u32)> {
    let mirror = |at: Svma| (bias.live(at) + JUMP).offset(i64::from(k));
    let mut all: Vec<(RemoteAddr, u32)> = sites
        .iter()
        .zip(0..)
        .map(|(site, n)| match site.reach {
            Reach::Mirror => (mirror(site.start), n),
            Reach::Island(at) => (mirror(at), n),
            Reach::Pun(_, target) => (target, n),
            // Nothing jumps there: the arena is as good as any place behind the mirror.
            Reach::Trap => (arena, n),
        })
        .collect();
    all.sort();
    all
}

fn finish(plan: &mut ModulePlan) {
    // Nearly sorted all of them, which the stable sort takes advantage of.
    plan.chunks.sort_by_key(|c| c.addr);
    plan.patches.sort_by_key(|p| p.addr);
    plan.guards.sort_by_key(|g| g.at);
    plan.refused.sort_by_key(|r| r.want);
    let stats = &mut plan.stats;
    stats.refused = plan.refused.len() as u32;
    stats.sites[Tactic::Kernel as usize] = plan.kernel.len() as u32;
    for patch in &plan.patches {
        stats.crossing += u32::from(patch.crosses_line);
        stats.guarded += u32::from(patch.needs_guard);
        stats.sites[patch.tactic as usize] += u32::from(patch.role != PatchRole::Island);
    }
}

/// The tactic that each of `functions` would get in a process with these traits and an empty address space, without any
/// process: what `list` and `--dry-run` show. `role` is one of `CountEntry`, `CountExits`, `Latency`; the tactic is the
/// least preferred of the function's sites.
#[must_use]
pub fn preview(
    image: &Image,
    map: &CodeMap,
    traits: &ProcessTraits,
    functions: &[FunctionIndex],
    role: Role,
) -> Vec<Result<Tactic, Refusal>> {
    let latency = |n: u32| (role == Role::Latency).then_some(n);
    let wants: Vec<Want> = (0..)
        .zip(functions)
        .map(|(n, &f)| Want { probe: n, latency: latency(n), function: Some(f), role })
        .collect();
    let layout = DataLayout::new(&bounds(image, map, traits, &wants));
    let bias = Bias(if image.kind() == ImageKind::Exec { 0 } else { 0x7f00_0000_0000 });
    let ends = image.loads().iter().map(|s| (bias.live(s.svma), bias.live(s.svma + s.memsz)));
    let mut space = AddressSpace::default();
    ends.for_each(|(start, end)| space.occupy(start, end));
    let stamps = LatencyInput {
        stamps: RemoteAddr(0x1000_0000_0000),
        min_ticks: 0,
        buckets: Buckets::Log,
        outermost: false,
        go_g: None,
    };
    let input = ModuleInput {
        image,
        bias,
        map,
        traits,
        space: &space,
        layout: &layout,
        latency: Some(stamps),
        calls: None,
        wants: &wants,
    };
    match plan_module(&input) {
        Ok(plan) => tactics(&plan, wants.len()),
        Err(_) => {
            functions.iter().map(|&f| Err(Refusal::Incomplete { at: image.function(f).start })).collect()
        }
    }
}

fn tactics(plan: &ModulePlan, wants: usize) -> Vec<Result<Tactic, Refusal>> {
    let mut all: Vec<Result<Tactic, Refusal>> = vec![Ok(Tactic::Jump); wants];
    let sites = plan.patches.iter().map(|p| (p.want, p.tactic));
    for (want, tactic) in sites.chain(plan.kernel.iter().map(|k| (k.want, Tactic::Kernel))) {
        if let Some(Ok(worst)) = all.get_mut(want as usize) {
            *worst = (*worst).max(tactic);
        }
    }
    for refused in &plan.refused {
        if let Some(answer) = all.get_mut(refused.want as usize) {
            *answer = Err(refused.why.clone());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::site::{Act, Deed, Owner, When};
    use crate::x86_64::stub;
    use smallvec::SmallVec;

    fn site(start: u64, asked: &[u32]) -> Site {
        let act = |&want: &u32| Act {
            at: Svma(start),
            when: When::Before,
            deed: Deed::Count { probe: 10 + want },
            dead: stub::Site::default(),
            want,
            detour: None,
        };
        Site {
            owner: Owner { want: asked[0], probe: 10 + asked[0], role: PatchRole::Entry },
            start: Svma(start),
            insns: SmallVec::new(),
            acts: asked.iter().map(act).collect(),
            changed: JUMP,
            reach: Reach::Mirror,
        }
    }

    #[test]
    fn who_shares_a_patch_with_one_withdrawn_is_refused_too() {
        let want = |probe| Want { probe, latency: None, function: None, role: Role::CountEntry };
        let wants = [want(10), want(11), want(12)];
        let sites = [site(0x10, &[0]), site(0x20, &[0, 1]), site(0x30, &[2])];
        let patch = |n: usize| Patch {
            probe: sites[n].owner.probe,
            want: sites[n].owner.want,
            role: PatchRole::Entry,
            tactic: Tactic::Jump,
            addr: RemoteAddr(sites[n].start.0),
            len: 5,
            relies: 5,
            old: [0; 8],
            new: [0; 8],
            head: RemoteAddr(0),
            crosses_line: false,
            needs_guard: false,
        };
        let mut plan = ModulePlan { patches: vec![patch(1), patch(2)], ..ModulePlan::default() };
        let lost = Refused { probe: 0, want: 0, why: Refusal::NotInFile { at: Svma(0x10) } };
        withdraw(&mut plan, &sites, &wants, vec![lost]);
        assert_eq!(plan.refused.iter().map(|r| (r.want, r.probe)).collect::<Vec<_>>(), [(0, 10), (1, 11)]);
        assert_eq!(plan.patches.iter().map(|p| p.want).collect::<Vec<_>>(), [2]);
    }
}
