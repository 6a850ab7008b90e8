//! The actions at a word: what is done there, in which order, and how much room its code needs at most.
//!
//! In: nothing; the planner makes these values. Out: plain values, and numbers of bytes. Does not: emit code
//! (`emit`).

use trapline_record::ring::RecordKind;

use super::stub::HOLD_BYTES;
use super::stub::Signed;
use super::stub::adding::{ROW_BYTES, SUMS_BYTES};
use super::stub::arguments::MARK_BYTES;
use super::stub::deferred::DEFERRED_BYTES;
use super::stub::filter::code_bytes;
use super::stub::keyed_stack::BYTES as KEYED_BYTES;
use super::stub::marked::{NUMBER_BYTES, TEXT_BYTES as TEXT_NUMBER_BYTES};
use super::stub::text::{BYTES, ROOM_BYTES};
use crate::filter::{Sort, Taken, TargetFilter};
use crate::machine::ExitKind;
use crate::request::{Floats, Hold, Unwind};

/// An action at a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SiteAction {
    /// Add one to the probe's counter.
    Count { probe: u32 },
    /// The same for hits that pass the probe's filter. `bytes`: upper bound of its code.
    FilteredCount { probe: u32, bytes: u32 },
    /// Add one to the row of the probe's value, for hits that pass. With `late` it aggregates calls:
    /// entries keep what is known there. `loads`: number of its loads from memory; `goroutine`: the call is a
    /// goroutine's.
    Tally { probe: u32, kind: RecordKind, late: bool, bytes: u32, loads: u32, goroutine: bool },
    /// Write a stamp into a latency area. `looped`: branches of the function reach the word, too;
    /// `goroutine`: the call is a goroutine's.
    Enter { latency: u32, looped: bool, goroutine: bool },
    /// Put a return trampoline into x30. `signed`: how it was signed before.
    Arm { latency: u32, signed: Option<Signed> },
    /// Find the stamp, and record the time since then.
    Exit { latency: u32, kind: ExitKind, goroutine: bool },
    /// Write a record, of an entry or an exit. The probe's counter counts dropped ones.
    Record(Record),
    /// Hold the thread if it is about to change a fact that patches rely on.
    Hold(Hold),
}

impl SiteAction {
    /// Whether the call goes on as another function (a tail call).
    pub(super) fn is_tail(&self) -> bool {
        match self {
            Self::Tally { kind, .. } | Self::Record(Record { kind, .. }) => *kind == RecordKind::Tail,
            Self::Exit { kind, .. } => *kind == ExitKind::Tail,
            _ => false,
        }
    }
}

/// What a record holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) probe: u32,
    pub(super) kind: RecordKind,
    /// Number of arguments at an entry.
    pub(super) values: u8,
    /// Bits of those arguments that point to text.
    pub(super) texts: u8,
    /// Those of them that end at a 0.
    pub(super) ended: u8,
    /// Number of loads that its fields take.
    pub(super) loads: u32,
    pub(super) floats: Floats,
    /// As in [`Action::Record`](crate::Action::Record).
    pub(super) valued: bool,
    pub(super) unwind: Unwind,
    /// The word is a function's entry.
    pub(super) at_entry: bool,
    /// The word is a USDT probe, and its arguments are where its note says.
    pub(super) noted: bool,
    /// Upper bound of the code bytes of the probe's filter, if it has one.
    pub(super) decides: Option<u32>,
    /// Exits are recorded too, so they need to know which entries passed.
    pub(super) returns: bool,
    /// The call is a goroutine's.
    pub(super) goroutine: bool,
}

impl SiteAction {
    /// The order in which several actions at one word run: a function of one word is entered, then left.
    pub(super) const fn rank(self) -> u8 {
        match self {
            Self::Count { .. } | Self::FilteredCount { .. } | Self::Tally { late: false, .. } => 0,
            Self::Enter { .. }
            | Self::Arm { .. }
            | Self::Tally { kind: RecordKind::Entry, .. }
            | Self::Record(Record { kind: RecordKind::Entry, .. }) => 1,
            Self::Exit { .. } | Self::Tally { .. } | Self::Record(_) => 2,
            // If other requests are for the same word, the patch is named after those.
            Self::Hold(_) => 3,
        }
    }
    /// Upper bound of the bytes of its stub, with what it displaces.
    pub(super) const fn room(self) -> u64 {
        match self {
            Self::Count { .. } => 512,
            Self::Hold(_) => HOLD_BYTES,
            Self::Tally { late, bytes, loads, goroutine, .. } => {
                let deferred = if late { DEFERRED_BYTES } else { 0 };
                let fixed = 1024 + ROW_BYTES + deferred;
                (fixed + bytes as u64 + copying(loads, goroutine)).next_multiple_of(64)
            }
            Self::FilteredCount { bytes, .. } => (1024 + bytes as u64).next_multiple_of(64),
            Self::Enter { .. } | Self::Arm { .. } | Self::Exit { .. } => 2048,
            Self::Record(record) => {
                let decides = match record.decides {
                    Some(bytes) => DEFERRED_BYTES + bytes as u64,
                    None => 0,
                };
                let loads = record.texts.count_ones() + record.loads;
                let moving = if record.noted { MARK_BYTES } else { 0 };
                (1024 + copying(loads, record.goroutine) + decides + moving).next_multiple_of(64)
            }
        }
    }
}

/// Bytes of code for this many loads.
const fn copying(loads: u32, goroutine: bool) -> u64 {
    BYTES * loads as u64 + if goroutine && loads > 0 { ROOM_BYTES } else { 0 }
}

/// Number of loads for an aggregated value: texts, and fields, each through its pointers.
pub(super) fn loads(filter: &TargetFilter) -> u32 {
    let texts = filter.tally.as_ref().map_or(0, |tally| tally.texts().count_ones());
    let kept = filter.kept.len() as u32;
    texts + kept + filter.reads.iter().map(|read| read.offsets.len().max(1) as u32).sum::<u32>()
}

/// Upper bound of the bytes of everything that a filter's code computes.
pub(super) fn deciding(filter: &TargetFilter) -> u32 {
    let sums = filter.tally.as_ref().is_some_and(|tally| tally.sort == Sort::Sums);
    let keyed = filter.program.as_ref().is_some_and(|hit| !hit.stacks.is_empty());
    let more = if sums { SUMS_BYTES } else { 0 } + if keyed { KEYED_BYTES } else { 0 };
    let marked = filter.program.is_some() && !filter.operands.is_empty();
    let more = more
        + if marked { MARK_BYTES } else { 0 }
        + filter.taken.iter().map(|taken| bytes_of(*taken)).sum::<u64>();
    code_bytes(filter) as u32 + more as u32
}

/// Bytes of code that puts a value into its argument's place.
const fn bytes_of(taken: Taken) -> u64 {
    match taken {
        Taken::Text { .. } => TEXT_NUMBER_BYTES,
        Taken::Number { .. } | Taken::Unknown => NUMBER_BYTES,
    }
}
