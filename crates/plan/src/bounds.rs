//! How much shared memory a batch may need, computed before it is planned.
//!
//! In: the requests, and the module's map. Out: upper bounds ([`DataCounts`]). Does not: plan.

use crate::codemap::CodeMap;
use crate::layout::{DataCounts, MODULE_REGIONS};
use crate::machine::ProcessTraits;
use crate::request::{Action, ActionRequest, Unwind};
use trapline_image::{FunctionIndex, Image};
use trapline_record::maps::{MapBytes, StackTable, TextTable};
use trapline_record::ring::{LEAST_SLOT, RingArea};
use trapline_record::stack::{room_for_copy, room_for_frames};
use trapline_record::tally::TableShape;

/// Upper bound of the guards in a window: its interior boundaries, and its start. If faults are delivered, each
/// of its instructions has an entry for that too.
const GUARDS_PER_PATCH: u32 = 5;

/// Upper bounds for [`DataCounts`]: patches and guards from the map, counters and latency areas from the
/// highest index in `requests`, lines from `traits`.
#[must_use]
pub fn bounds(
    image: &Image,
    map: &CodeMap,
    traits: &ProcessTraits,
    requests: &[ActionRequest],
) -> DataCounts {
    let (mut sites, mut timed, mut copies) = (0, 0, 0);
    let (mut counters, mut latency, mut slot, mut most) = (0, 0, 0, 0);
    for request in requests {
        sites += sites_of(request, |f| map.exit_bound(f));
        timed += usize::from(has_exits(request.action));
        copies += texts(request.action);
        let record = record(request.action);
        (slot, most) = (slot.max(record.0), most.max(record.1));
        counters = counters.max(if request.action.counts() { request.probe + 1 } else { 0 });
        latency = latency.max(request.latency.map_or(0, |index| index + 1));
    }
    let sites = sites + fragments_bound(image, timed);
    DataCounts {
        patches: 2 * sites,
        guards: 2 * sites * GUARDS_PER_PATCH * if traits.faults_delivered { 2 } else { 1 } + copies,
        counters,
        latency,
        lines: traits.lines,
        by_thread: false,
        slot,
        most,
        ring: 0,
        texts: copies != 0,
        locked: traits.rseq.is_none(),
        filtered: false,
        tally: TableShape::Nothing,
        maps: MapBytes::NONE,
        stacks: StackTable { frames: 0 },
        keyed_texts: TextTable { is_there: false },
        named: false,
        regions: MODULE_REGIONS,
    }
}

/// Upper bound of the sites that a request needs.
pub(crate) fn sites_of(request: &ActionRequest, exit_bound: impl Fn(FunctionIndex) -> u32) -> u32 {
    let exits = || request.function.map_or(0, &exit_bound);
    match request.action {
        Action::CountEntry
        | Action::CountAt(_)
        | Action::CallEntry
        | Action::CallArmed
        | Action::CallAt(_)
        | Action::Hold(_)
        | Action::HoldAt(..)
        | Action::Deliver { .. }
        | Action::RecordAt(..)
        | Action::RecordMark(..)
        | Action::RunAt(_)
        | Action::LatencyByTrampoline
        | Action::Tally { exits: false }
        | Action::Record { returns: false, .. } => 1,
        Action::CountExits | Action::CallExits => exits(),
        // The entry counts too, where returns aggregate what only the entry knew.
        Action::Latency | Action::Tally { exits: true } | Action::Record { returns: true, .. } => 1 + exits(),
    }
}

/// Bytes of a ring slot, and upper bound of a record's bytes. Records with stacks take as many slots as they
/// need.
const fn record(role: Action) -> (u32, u32) {
    let slot = match role {
        Action::Record { stack: Unwind::Frames(frames), .. }
        | Action::RecordAt(_, Unwind::Frames(frames)) => {
            return (LEAST_SLOT, room_for_frames(frames));
        }
        Action::Record { stack: Unwind::Copy(bytes), .. } | Action::RecordAt(_, Unwind::Copy(bytes)) => {
            return (LEAST_SLOT, room_for_copy(bytes));
        }
        Action::Record { values, texts, floats, fields, .. } => {
            let (texts, vectors) = (texts.count_ones() as usize, floats.arguments.count_ones() as usize);
            let all = RingArea::slot_with_floats(values as usize, texts, vectors + fields as usize);
            let exit = RingArea::slot_for(floats.results.words());
            if all > exit { all } else { exit }
        }
        Action::RecordAt(..) => RingArea::slot_for(0),
        Action::RecordMark(_, fields) => RingArea::slot_with_floats(6, 0, fields as usize),
        _ => 0,
    };
    (slot, slot)
}

/// Number of texts in an entry's record. Copying each of them may fault at one place.
pub(crate) const fn texts(role: Action) -> u32 {
    if let Action::Record { texts, .. } = role { texts.count_ones() } else { 0 }
}

pub(crate) const fn has_exits(role: Action) -> bool {
    matches!(
        role,
        Action::CountExits
            | Action::Latency
            | Action::CallExits
            | Action::Tally { exits: true }
            | Action::Record { returns: true, .. }
    )
}

/// Upper bound of the exits in fragments that `timed` functions may turn out to own: 64 for each of these few
/// functions. It is never more than 16 for each fragment of the file, since a fragment has one owner.
fn fragments_bound(image: &Image, timed: usize) -> u32 {
    let most = (64 * timed).min(16 * image.fragments().len());
    u32::try_from(most).unwrap_or(u32::MAX / 16)
}
