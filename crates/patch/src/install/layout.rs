//! Room for a batch's data: how much of it there is, where it lies, and what it costs.
//!
//! In: a request, a survey. Out: the layout of a segment; free ranges for stamps, for data that code reaches by
//! a whole address, and for return trampolines. Ranges that are found are noted as occupied.
//! Does not: map them, or find room for code (the planner does).

use trapline_plan::filter::{Tally, TargetFilter};
use trapline_plan::hit::input;
use trapline_plan::{
    Action, ActionRequest, Charged, DataCounts, DataLayout, LatencyInput, Region, TooLittle, bounds, charge,
};
use trapline_record::latency::Stamps;
use trapline_record::maps::{MapBytes, TextTable};
use trapline_record::sharers::PAGE;
use trapline_record::tally::TableShape;
use trapline_record::trampolines::Trampolines;

use crate::error::PatchError;
use crate::install::survey::Survey;
use crate::native::returns::trampoline_code_len;
use crate::report::AttachReport;
use crate::request::{Durations, Options, Request};
use trapline_record::calls::{AT_ONCE, PROBE_BITS, WORD};

/// Where a batch's data lies, and what it costs.
#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) layout: DataLayout,
    /// Which bytes of the segment are allocated before a site is written, and by how much the others may grow.
    pub(crate) paid: [(u64, u64); 3],
    pub(crate) may_grow: Option<u64>,
    pub(crate) stamps: Option<Region>,
    /// A page of the process' own, if programs ask for its number.
    pub(crate) own: Option<Region>,
    /// The far part of the data, if there is one.
    pub(crate) far: Option<Region>,
    /// What code for durations and for return trampolines is made from.
    pub(crate) latency: Option<LatencyInput>,
}

impl Room {
    /// Finds it. `made`: return trampolines of an earlier batch.
    pub(crate) fn find(
        pid: u32,
        request: &Request<'_>,
        survey: &mut Survey,
        made: Option<Trampolines>,
        report: &mut AttachReport,
    ) -> Result<Self, PatchError> {
        let Charged { layout, paid, may_grow } = charged(pid, request, survey, report)?;
        let shape = stamps_of(request, &layout);
        let stamps = shape.map(|shape| find_region(pid, shape.bytes(), survey)).transpose()?;
        let programs = || request.all_filters().filter_map(|filter| filter.program.as_deref());
        let asks = programs().any(|program| program.reads(input::MEMBER));
        let own = asks.then(|| find_region(pid, PAGE, survey)).transpose()?;
        let far = (layout.far() > 0).then(|| find_region(pid, layout.far(), survey)).transpose()?;
        let Options { trampolines: count, or_trampolines, .. } = request.options;
        let trampolines = match made {
            _ if !request.may_use_trampolines() => None,
            None => Some(find_trampolines(pid, count, survey)?),
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
            by_trampolines: request.returns_by_trampolines(),
            leads_on: request.follows_returns(),
        });
        Ok(Self { layout, paid, may_grow, stamps, own, far, latency })
    }
}

/// The layout, as far as limits of memory allow it; in a code region that exists already, that region's.
fn charged(
    pid: u32,
    request: &Request<'_>,
    survey: &Survey,
    report: &mut AttachReport,
) -> Result<Charged, PatchError> {
    if let Some((_, layout)) = survey.code_region {
        return Ok(Charged { layout, paid: [(0, 0); 3], may_grow: None });
    }
    let counts = counts(request, survey);
    let most = 1 << PROBE_BITS;
    if request.options.compact && counts.counters > most {
        return Err(PatchError::ManyProbes { pid, probes: counts.counters, most });
    }
    let charged = charge(&counts, &survey.left).map_err(|why| too_little(why, pid, survey))?;
    let (have, wanted) = (charged.layout.rings.bytes, DataLayout::new(&counts).rings.bytes);
    report.small_rings = (have < wanted).then_some((have.into(), wanted.into()));
    Ok(charged)
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
pub(crate) fn counts(request: &Request<'_>, survey: &Survey) -> DataCounts {
    let lines = survey.traits.lines;
    let by_thread = request.options.by_thread;
    let filtered = !request.filters.is_empty();
    let ring = request.options.ring;
    let shapes = request.filters.iter().flatten().filter_map(|filter| filter.tally.as_ref());
    let tally = shapes.map(Tally::shape).fold(TableShape::Nothing, TableShape::or);
    let locked = survey.traits.rseq.is_none();
    let named = request.filters.iter().flatten().any(|filter| filter.by_name);
    let programs = || request.all_filters().filter_map(|filter| filter.program.as_deref());
    let maps = programs().map(|program| program.bytes).fold(MapBytes::NONE, MapBytes::or);
    let stacks = programs().map(|program| program.stacks).max_by_key(|stacks| stacks.frames);
    let stacks = stacks.unwrap_or_default();
    let keyed_texts = TextTable { is_there: programs().any(|program| !program.texts.is_empty()) };
    let nothing = DataCounts::default();
    let kept = DataCounts {
        lines,
        by_thread,
        ring,
        locked,
        filtered,
        tally,
        maps,
        stacks,
        keyed_texts,
        named,
        ..nothing
    };
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
    if request.options.compact && counts.slot != 0 {
        let requests = request.modules.iter().flat_map(|module| module.requests);
        let values = requests.map(|request| request.action.compact_values()).max().unwrap_or(0);
        (counts.slot, counts.most) = (WORD, WORD * (AT_ONCE + values));
    }
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
fn find_region(pid: u32, len: u64, survey: &mut Survey) -> Result<Region, PatchError> {
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
