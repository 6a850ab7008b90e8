//! Plans a module: chooses the space, plans each function, lays out the stubs.
//!
//! In: [`ModuleInput`]. Out: [`ModulePlan`]. Does not: decide anything about a single site.

use crate::bounds::texts;
use crate::bounds::{bounds, has_exits};
use crate::filter::{Tally, TargetFilter, Tree};
use crate::input::ModuleInput;
use crate::layout::{DataAt, DataCounts, DataLayout};
use crate::machine::ProcessTraits;
use crate::plan::{Chunk, KernelSite, ModulePlan, Patch, PatchRole, Refused, Region, Tactic};
use crate::refusal::{PlanError, Refusal};
use crate::request::{Action, ActionRequest, LatencyInput, Unwind};
use crate::space::{AddressSpace, CodeRegion, ModuleSpace, Need, PAGE, choose};
use crate::unwind::TrampolineCode;
use crate::x86_64::Env;
use crate::x86_64::emit::{Emitter, Setting};
use crate::x86_64::function::Planner;
use crate::x86_64::pun::Puns;
use crate::x86_64::site::{PatchedSite, Reach};
use crate::x86_64::stub::arguments::{GO_BYTES, MARK_BYTES};
use crate::x86_64::stub::filter::NODE_BYTES;
use crate::x86_64::stub::stack::BYTES as STACK_BYTES;
use crate::x86_64::stub::{self, Latency, Machine, PageNotes, Rings, ThreadId, Threads};
use crate::x86_64::window::JUMP;
use trapline_image::{Image, Machine as Processor};
use trapline_record::addr::Bias;
use trapline_record::counters::filtered;
use trapline_record::trampolines::Trampolines;
use trapline_record::{RemoteAddr, Svma, control};

/// Upper bound of the arena bytes for an action, with the displaced instructions around it.
const ARENA_PER_SITE: u64 = 1024;
/// Upper bound of the code bytes that copy one text.
const TEXT_BYTES: u64 = 704;
/// Upper bound of the code bytes of a filter, without its condition: thread names, sampling, counting, marks.
const FILTER_BYTES: usize = 896;
/// Upper bound of the code bytes that keep something for the return, and copy it to a ring.
const DEFERRED_BYTES: u64 = 768;
/// Approximate number of code bytes for a counted entry.
const BYTES_PER_SITE: usize = 224;
/// Upper bound of the threads that analyse functions.
const HELPERS: usize = 8;
/// From this many requests on, several threads plan.
const PARALLEL: usize = 1000;
/// Bytes kept free for code that the batch needs itself.
const SPARE: u64 = PAGE;
/// Bytes for the gate through which consumers are called. Most of them save the extended state component by
/// component.
const GATE: u64 = 2 * PAGE;

/// Which part of the stack a record holds.
const fn unwind(role: Action) -> Unwind {
    match role {
        Action::Record { stack, .. } | Action::RecordAt(_, stack) => stack,
        _ => Unwind::None,
    }
}

/// Plans all requests for one module.
///
/// # Errors
/// [`PlanError`] if nothing at all can be planned; a request that fails alone is in [`ModulePlan::refused`].
pub fn plan_module(input: &ModuleInput<'_>) -> Result<ModulePlan, PlanError> {
    check(input)?;
    if input.image.machine() == Processor::Aarch64 {
        return crate::aarch64::module::plan_module(input);
    }
    let env = Env {
        image: input.image,
        map: input.map,
        traits: input.traits,
        calls: input.calls,
        filters: input.filters,
        by_thread: input.layout.threads.rows > 0,
    };
    let place = match input.code_region {
        Some(code_region) => code_region.place(),
        None => choose(input.space, &need(input)?)?,
    };
    let own = (place.data.addr, place.code.end());
    let planned = plan_sites(env, input, own);
    let Planned { mut sites, mut refused, kernel, pun_regions, slotted } = planned;
    sites.sort_by_key(|s| s.start);
    drop_overlapping(env, input.requests, &mut sites, &mut refused);
    let mut plan = ModulePlan { k: place.k, data: place.data, kernel, refused, ..ModulePlan::default() };
    (plan.pun_regions, plan.slotted) = (pun_regions, slotted);
    emit(input, env, place, &sites, &mut plan);
    let others = |s: &PatchedSite| {
        s.actions.iter().map(|a| (s.owner.request, a.request)).filter(|(a, b)| a != b).collect::<Vec<_>>()
    };
    plan.shares = sites.iter().filter(|s| s.actions.len() > 1).flat_map(others).collect();
    let tails = sites.iter().flat_map(|s| &s.actions).filter(|placed| placed.is_tail());
    plan.tails = tails.map(|placed| placed.request).collect();
    finish(&mut plan);
    Ok(plan)
}

/// Chooses a space for a module's whole text, with `data` bytes for its segment, and `stubs` bytes for code.
///
/// # Errors
/// [`PlanError::NoSpace`], [`PlanError::NoText`].
pub fn find_code_region(
    image: &Image,
    bias: Bias,
    space: &AddressSpace,
    data: u64,
    stubs: u64,
) -> Result<CodeRegion, PlanError> {
    let text = image.text_ranges().iter().fold(None, |all: Option<(Svma, Svma)>, &(start, len)| {
        let (low, high) = all.unwrap_or((start, start));
        Some((low.min(start), high.max(start + len)))
    });
    let text = text.ok_or(PlanError::NoText)?;
    let need = Need { module: module(image, bias)?, text: around(text, bias), data, arena: stubs };
    choose(space, &need).map(CodeRegion::of)
}

/// Upper bound of the stub bytes that these requests, which call consumers, need in a space that has none
/// yet.
#[must_use]
pub fn room_for_calls(counts: &DataCounts) -> u64 {
    stubs(counts, ARENA_PER_SITE) + GATE + PAGE
}

fn stubs(counts: &DataCounts, per_site: u64) -> u64 {
    (u64::from(counts.patches / 2) * per_site + SPARE).next_multiple_of(PAGE)
}

/// Range of live addresses of a whole module.
fn module(image: &Image, bias: Bias) -> Result<Span, PlanError> {
    let loads = image.loads();
    let low = loads.iter().map(|s| s.svma).min().ok_or(PlanError::NoText)?;
    let high = loads.iter().map(|s| s.svma + s.memsz).max().ok_or(PlanError::NoText)?;
    Ok((bias.live(low), bias.live(high)))
}

/// Range of live addresses of a text, and what lies close. An island may lie this far off, and padding behind
/// the last function is covered too.
fn around(text: (Svma, Svma), bias: Bias) -> Span {
    const NEAR: u64 = 256;
    (bias.live(text.0 - NEAR.min(text.0.0)), bias.live(text.1 + NEAR))
}

/// Sum of what planning the functions gave.
#[derive(Default)]
struct Planned {
    sites: Vec<PatchedSite>,
    refused: Vec<Refused>,
    kernel: Vec<KernelSite>,
    pun_regions: Vec<Region>,
    slotted: Vec<Refused>,
}

type Span = (RemoteAddr, RemoteAddr);

fn plan_sites(env: Env<'_>, input: &ModuleInput<'_>, own: Span) -> Planned {
    let speculative = input.map.take_speculative();
    if let Some(sites) =
        speculative.and_then(|speculative| speculative.fits(env.traits, env.calls, input.requests))
    {
        return Planned { sites, ..Planned::default() };
    }
    let order = by_function(input.requests);
    let new = || Planner::new(env, input.bias, Puns::new(input.space, own, input.regions));
    if let Some((first, second)) = halves(&order).filter(|_| !input.alone) {
        let at = second[0].1.function.map_or(Svma(0), |f| input.image.function(f).start);
        let run = |part, low, high, room| {
            let mut planner = new();
            planner.claims.keep_within(low, high);
            planner.sites = room;
            planner.functions(part);
            planner
        };
        // This thread allocates the memory for both: the other thread's would be new, and the kernel would
        // have to clear it.
        let (all, its) = (Vec::with_capacity(order.len()), Vec::with_capacity(second.len()));
        let (mut a, b) = std::thread::scope(|scope| {
            let other = scope.spawn(|| run(second, at, Svma(u64::MAX), its));
            (run(first, Svma(0), at, all), other.join())
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

impl From<Planner<'_>> for Planned {
    fn from(planner: Planner<'_>) -> Self {
        let pun_regions = planner.puns.regions();
        let Planner { sites, refused, kernel, slotted, .. } = planner;
        Self { sites, refused, kernel, pun_regions, slotted }
    }
}

type Half<'a> = &'a [(u32, ActionRequest)];

/// Two halves that cannot get in each other's way: they hold entries only, so no window leaves its function.
fn halves(order: &[(u32, ActionRequest)]) -> Option<(Half<'_>, Half<'_>)> {
    let entry = |w: &ActionRequest| {
        matches!(w.action, Action::CountEntry | Action::CallEntry) && w.function.is_some()
    };
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
    for request in input.requests {
        if request.action.calls() {
            let callee = input.calls.and_then(|calls| calls.callees.get(request.probe as usize));
            callee.ok_or(PlanError::NoCallee { probe: request.probe })?;
        } else if request.action.counts() {
            outside("counter", request.probe, input.layout.counters.count)?;
        }
        if let Some(latency) = request.latency {
            outside("latency area", latency, input.layout.latency_count)?;
        }
    }
    let decided =
        input.requests.iter().filter(|w| input.filters.get(w.probe as usize).is_some_and(Option::is_some));
    for request in decided.clone() {
        outside("filter's words", filtered::WORDS * request.probe + 3, input.layout.filtered.count)?;
    }
    let deferred =
        |w: &ActionRequest| input.filters[w.probe as usize].as_ref().is_some_and(|one| one.late.is_some());
    let marked = decided.clone().any(|w| match w.action {
        Action::Tally { .. } => deferred(w),
        role => matches!(role, Action::Record { returns: true, .. }),
    });
    let wanted = |role| input.requests.iter().any(|w| w.action == role);
    let trampolines = input.latency.and_then(|latency| latency.trampolines);
    let timed = wanted(Action::Latency) || marked;
    let by_trampolines = input.latency.is_some_and(|latency| latency.by_trampolines);
    if timed && input.latency.is_none()
        || (wanted(Action::LatencyByTrampoline) || by_trampolines) && trampolines.is_none()
    {
        return Err(PlanError::NoStamps);
    }
    Ok(())
}

/// Requests by function, in address order.
pub(crate) fn by_function(requests: &[ActionRequest]) -> Vec<(u32, ActionRequest)> {
    let mut order: Vec<(u32, ActionRequest)> = (0..).zip(requests.iter().copied()).collect();
    order.sort_by_key(|(_, w)| w.function);
    order
}

/// Bytes of code that store one float.
const FLOAT_BYTES: u64 = 8;

/// Upper bound of the arena bytes for a site, with its filter, texts and floats.
fn arena_per_site(input: &ModuleInput<'_>) -> u64 {
    let nodes = |filter: &TargetFilter| {
        let tallied: usize = filter.tally.iter().flat_map(Tally::trees).map(Tree::decided_nodes).sum();
        let late = filter.late.as_ref().map_or(0, |late| late.condition.decided_nodes());
        let read = filter.fields.as_ref().map_or(0, Tree::decided_nodes);
        tallied + late + read + filter.condition.as_ref().map_or(0, Tree::decided_nodes)
    };
    let longest = input.filters.iter().flatten().map(nodes).max();
    let filter = longest.map_or(0, |nodes| (FILTER_BYTES + nodes * NODE_BYTES) as u64).next_multiple_of(64);
    let deferred = input.filters.iter().flatten().any(|filter| filter.late.is_some());
    let deferred = if deferred { DEFERRED_BYTES } else { 0 };
    let texts = input.requests.iter().map(|request| texts(request.action)).max().unwrap_or(0);
    let tallied = |filter: &TargetFilter| filter.tally.as_ref().map_or(0, |tally| tally.texts().count_ones());
    let texts = texts.max(input.filters.iter().flatten().map(tallied).max().unwrap_or(0));
    let floats = |request: &ActionRequest| match request.action {
        Action::Record { floats, .. } => floats.arguments.count_ones(),
        _ => 0,
    };
    let floats = u64::from(input.requests.iter().map(floats).max().unwrap_or(0)) * FLOAT_BYTES;
    let loads =
        |filter: &TargetFilter| filter.reads.iter().map(|read| read.offsets.len() + read.words()).sum();
    let fields: usize = input.filters.iter().flatten().map(loads).max().unwrap_or(0);
    let unwinds = |request: &ActionRequest| !matches!(unwind(request.action), Unwind::None);
    let stack = if input.requests.iter().any(unwinds) { STACK_BYTES } else { 0 };
    // An entry that arms its call has the code for the return's record beside it.
    let armed = input.latency.is_some_and(|latency| latency.leads_on && latency.trampolines.is_some());
    ARENA_PER_SITE * if armed { 2 } else { 1 }
        + filter
        + deferred
        + u64::from(texts) * TEXT_BYTES
        + floats.next_multiple_of(64)
        + stack
        + moving(input)
        + fields as u64 * TEXT_BYTES
}

/// Bytes of code that move a hit's arguments to where stubs expect them.
fn moving(input: &ModuleInput<'_>) -> u64 {
    let is_mark = |request: &ActionRequest| matches!(request.action, Action::RecordMark(..));
    let mark = if input.requests.iter().any(is_mark) { MARK_BYTES } else { 0 };
    mark + if input.image.is_go() { GO_BYTES } else { 0 }
}

/// What the module needs room for. The mirrored range covers the requested functions only.
fn need(input: &ModuleInput<'_>) -> Result<Need, PlanError> {
    let mut text = (Svma(u64::MAX), Svma(0));
    let mut cover = |start: Svma, end: Svma| text = (text.0.min(start), text.1.max(end));
    for request in input.requests {
        if let Action::CountAt(at)
        | Action::CallAt(at)
        | Action::RecordAt(at, _)
        | Action::RecordMark(at, _) = request.action
        {
            cover(at, at + 16);
        }
        let Some(function) = request.function.map(|f| input.image.function(f)) else { continue };
        cover(function.start, function.end());
        function.cold.iter().for_each(|&(start, len)| cover(start, start + len));
    }
    if input.requests.iter().any(|w| has_exits(w.action)) {
        input.image.fragments().iter().for_each(|&(start, len)| cover(start, start + len));
    }
    let module = module(input.image, input.bias)?;
    if text.0 >= text.1 {
        let low = input.bias.stated(module.0);
        text = (low, low + PAGE);
    }
    let counts = bounds(input.image, input.map, input.traits, input.requests);
    let arena =
        stubs(&counts, arena_per_site(input)) + if input.calls.is_some() { GATE + PAGE } else { PAGE };
    Ok(Need { module, text: around(text, input.bias), data: input.layout.near, arena })
}

/// Two functions may share code (cold parts, fragments). The later window gives way, and its requests are
/// refused as a whole.
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

fn emit(
    input: &ModuleInput<'_>,
    env: Env<'_>,
    place: ModuleSpace,
    sites: &[PatchedSite],
    plan: &mut ModulePlan,
) {
    let machine = Machine { rseq: input.traits.rseq, rdpid: input.traits.rdpid, lines: input.traits.lines };
    let data = input.layout.mapped(place.data.addr, input.far);
    let latency = input.latency.map(|latency| timing(latency, input.layout, data));
    let threads = by_thread(input.traits.thread_id, input.layout, data);
    let rings = rings(input.traits, input.layout, data);
    let (mirror_end, mut shared) = (place.arena, Vec::new());
    let gate = input.calls.map(|calls| stub::gate(&mut shared, mirror_end.0, &calls.functions));
    // The gate's pages come first, then what belongs to single sites.
    let used = input.code_region.map_or(mirror_end, |code_region| code_region.free);
    let place = ModuleSpace { arena: used.max(gate.map_or(mirror_end, |_| mirror_end + GATE)), ..place };
    let (layout, shared_space) = (input.layout, input.code_region.is_some());
    let set = Setting {
        env,
        bias: input.bias,
        place,
        data,
        mirror_end,
        shared_space,
        layout,
        machine,
        latency,
        threads,
        rings,
        gate,
    };
    let stub_starts = stub_starts(sites, input.bias, place.k, place.arena);
    let limit = RemoteAddr(place.code.end().0 - SPARE);
    let is_one = input.alone || stub_starts.len() < PARALLEL;
    let middle = if is_one { stub_starts.len() } else { stub_starts.len() / 2 };
    let (first, second) = stub_starts.split_at(middle);
    // A window may serve both an entry and an exit.
    let actions =
        |(_, site): &(RemoteAddr, u32)| sites.get(*site as usize).map_or(0, |site| site.actions.len() as u64);
    let between = match second.is_empty() {
        true => limit,
        false => place.arena + first.iter().map(actions).sum::<u64>() * arena_per_site(input),
    };
    let end = second.first().map_or(mirror_end, |l| l.0);
    // `all` has room for everything, since the other half is appended to it. This thread allocates both, as
    // above.
    let calls = input.calls.is_some();
    let (all, its) = (room_for(stub_starts.len(), calls), room_for(second.len(), calls));
    let (a, b) = std::thread::scope(|scope| {
        let other = (!second.is_empty())
            .then(|| scope.spawn(|| lay(set, sites, second, mirror_end, (between, limit), its)));
        let own = lay(set, sites, first, end, (place.arena, between.min(limit)), all);
        (own, other.and_then(|t| t.join().ok()))
    });
    let free = b.as_ref().map_or(a.arena, |b| b.arena);
    let mut lost = a.lost;
    plan.join(a.part);
    if let Some(b) = b {
        plan.join(b.part);
        lost.extend(b.lost);
    }
    if gate.is_some() && used == mirror_end {
        debug_assert!(shared.len() as u64 <= GATE, "the gate takes {} bytes", shared.len());
        let (off, len) = (plan.bytes.len() as u32, shared.len() as u32);
        plan.chunks.push(Chunk { addr: mirror_end, off, len });
        plan.bytes.append(&mut shared);
    }
    plan.free = free;
    let spare = RemoteAddr(free.0.next_multiple_of(PAGE));
    plan.spare = Region { addr: spare, len: SPARE };
    plan.code = match input.code_region {
        Some(code_region) => code_region.code,
        None => Region { addr: place.code.addr, len: spare + SPARE - place.code.addr },
    };
    withdraw(plan, sites, input.requests, lost);
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

/// Lays the sites whose stubs begin at `stub_starts` into `part`. The next site behind them begins at `end`.
fn lay(
    set: Setting<'_>,
    sites: &[PatchedSite],
    stub_starts: &[(RemoteAddr, u32)],
    end: RemoteAddr,
    arena: Span,
    mut part: ModulePlan,
) -> Laid {
    let mut emitter = Emitter::new(&set, &mut part, arena);
    let mut lost = Vec::new();
    for (n, &(stub_start, site)) in stub_starts.iter().enumerate() {
        let next = stub_starts.get(n + 1).map_or(end, |l| l.0).min(set.mirror_end);
        let room = if set.shared_space { JUMP } else { next.0.saturating_sub(stub_start.0) };
        let site = &sites[site as usize];
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
/// with one of them loses that patch too, and is refused for the same reason.
fn withdraw(
    plan: &mut ModulePlan,
    sites: &[PatchedSite],
    requests: &[ActionRequest],
    mut lost: Vec<Refused>,
) {
    if lost.is_empty() {
        return;
    }
    let mut known = 0;
    while known < lost.len() {
        let Refused { request, why, .. } = lost[known].clone();
        known += 1;
        for site in sites.iter().filter(|s| s.actions.iter().any(|a| a.request == request)) {
            for placed in &site.actions {
                if !lost.iter().any(|r| r.request == placed.request) {
                    lost.push(Refused { probe: 0, request: placed.request, why: why.clone() });
                }
            }
        }
    }
    plan.patches.retain(|p| !lost.iter().any(|r| r.request == p.request));
    for mut refused in lost {
        refused.probe = requests.get(refused.request as usize).map_or(0, |w| w.probe);
        if !plan.refused.iter().any(|r| r.request == refused.request) {
            plan.refused.push(refused);
        }
    }
    let patches = &plan.patches;
    let inside = |p: &Patch, at: RemoteAddr| p.addr < at && at < p.addr + u64::from(p.len);
    plan.guards.retain(|g| patches.iter().any(|p| inside(p, g.at)));
    plan.calls.retain(|call| patches.iter().any(|p| p.addr == call.head));
}

fn timing(input: LatencyInput, layout: &DataLayout, data: DataAt) -> Latency {
    Latency {
        area: data.of(layout.latency_off),
        functions: layout.latency_count,
        stamps: input.stamps.0,
        shape: input.shape,
        missed: data.of(control::at::MISSED),
        min_ticks: input.min_ticks,
        buckets: input.buckets,
        outermost: input.outermost,
        go: input.go_g,
        trampolines: input.trampolines,
    }
}

/// The code of return trampolines, for all modules and later batches of a process. `image` is any of the
/// modules.
#[must_use]
pub fn trampolines_for(
    image: &Image,
    traits: &ProcessTraits,
    trampolines: Trampolines,
    input: &LatencyInput,
) -> Option<TrampolineCode> {
    if image.machine() == Processor::Aarch64 {
        return crate::aarch64::lay::trampolines_for(traits, trampolines, input);
    }
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

fn by_thread(id: ThreadId, layout: &DataLayout, data: DataAt) -> Option<Threads> {
    let area = layout.threads;
    (!area.is_empty()).then(|| Threads { area, tags: data.of(area.off), id })
}

/// Where stubs find the notes about pages that texts may be loaded from.
pub(crate) fn known(layout: &DataLayout, data: DataAt) -> Option<PageNotes> {
    (!layout.pages.is_empty()).then_some(PageNotes {
        tables: data.of(layout.pages.off),
        handler: data.of(control::at::FAULT_HANDLER),
    })
}

fn rings(traits: &ProcessTraits, layout: &DataLayout, data: DataAt) -> Option<Rings> {
    let (area, base) = (layout.rings, data.of(layout.rings.off));
    let known = known(layout, data);
    (!area.is_empty()).then_some(Rings { area, base, id: traits.thread_id, stacks: traits.stacks, known })
}

/// Where each site's stub begins, in address order.
fn stub_starts(sites: &[PatchedSite], bias: Bias, k: i32, arena: RemoteAddr) -> Vec<(RemoteAddr, u32)> {
    let mirror = |at: Svma| (bias.live(at) + JUMP).offset(i64::from(k));
    let mut all: Vec<(RemoteAddr, u32)> = sites
        .iter()
        .zip(0..)
        .map(|(site, n)| match site.reach {
            Reach::Mirror => (mirror(site.start), n),
            Reach::Island(at) => (mirror(at), n),
            Reach::Pun(_, target) => (target, n),
            // No jump leads to it, so the arena is as good as any address behind the mirrored range.
            Reach::Trap => (arena, n),
        })
        .collect();
    all.sort();
    all
}

fn finish(plan: &mut ModulePlan) {
    // All are nearly sorted, which makes the stable sort fast.
    plan.chunks.sort_by_key(|c| c.addr);
    plan.patches.sort_by_key(|p| p.addr);
    plan.guards.sort_by_key(|g| g.at);
    plan.fixups.sort_by_key(|g| g.at);
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
    use super::*;
    use crate::x86_64::site::{Owner, PlacedAction, SiteAction, When};
    use crate::x86_64::stub;
    use smallvec::SmallVec;
    use trapline_record::ring::Kind;

    fn site(start: u64, asked: &[u32]) -> PatchedSite {
        let placed = |&request: &u32| PlacedAction {
            at: Svma(start),
            when: When::Before,
            action: SiteAction::Count { probe: 10 + request, kind: Kind::Entry },
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
            reach: Reach::Mirror,
        }
    }

    #[test]
    fn who_shares_a_patch_with_one_withdrawn_is_refused_too() {
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
        };
        let mut plan = ModulePlan { patches: vec![patch(1), patch(2)], ..ModulePlan::default() };
        let lost = Refused { probe: 0, request: 0, why: Refusal::NotInFile { at: Svma(0x10) } };
        withdraw(&mut plan, &sites, &requests, vec![lost]);
        assert_eq!(plan.refused.iter().map(|r| (r.request, r.probe)).collect::<Vec<_>>(), [(0, 10), (1, 11)]);
        assert_eq!(plan.patches.iter().map(|p| p.request).collect::<Vec<_>>(), [2]);
    }
}
