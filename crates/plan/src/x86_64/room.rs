//! Upper bounds of the code bytes that requests need, before anything is planned.
//!
//! In: requests, with their filters. Out: numbers of bytes. What is laid out is compared with them: a stub that
//! needs more is refused, and never overlaps another one.

use super::stub::arguments::{GO_BYTES, MARK_BYTES};
use super::stub::filter::code_bytes;
use super::stub::keyed_stack::BYTES as KEYED_BYTES;
use super::stub::marked::{NUMBER_BYTES, TEXT_BYTES as TEXT_NUMBER_BYTES};
use super::stub::stack::BYTES as STACK_BYTES;
use crate::bounds::texts;
use crate::filter::{Taken, TargetFilter};
use crate::input::ModuleInput;
use crate::layout::DataCounts;
use crate::request::{Action, ActionRequest, Unwind};
use crate::space::PAGE;

/// Upper bound of the arena bytes for an action, with the displaced instructions around it.
const ARENA_PER_SITE: u64 = 1024;
/// Upper bound of the code bytes that copy one text.
const TEXT_BYTES: u64 = 704;
/// Upper bound of the code bytes of a filter, without its condition: thread names, sampling, counting, marks.
const FILTER_BYTES: usize = 896;
/// Upper bound of the code bytes that keep something for the return, and copy it to a ring.
const DEFERRED_BYTES: u64 = 768;
/// Upper bound of the code bytes that copy one text into a call's memory.
const KEPT_BYTES: u64 = 256;
/// Bytes of code that store one float.
const FLOAT_BYTES: u64 = 10;
/// Bytes kept free for code that the batch needs itself.
pub(super) const SPARE: u64 = PAGE;
/// Bytes for the gate through which consumers are called. Most of them save the extended state component by
/// component.
pub(super) const GATE: u64 = 2 * PAGE;

/// Upper bound of the stub bytes that these requests, which call consumers, need in a space that has none
/// yet.
#[must_use]
pub fn room_for_calls(counts: &DataCounts) -> u64 {
    stubs(counts, ARENA_PER_SITE) + GATE + PAGE
}

pub(super) fn stubs(counts: &DataCounts, per_site: u64) -> u64 {
    (u64::from(counts.patches / 2) * per_site + SPARE).next_multiple_of(PAGE)
}

/// Which part of the stack a record holds.
const fn unwind(role: Action) -> Unwind {
    match role {
        Action::Record { stack, .. } | Action::RecordAt(_, stack) => stack,
        _ => Unwind::None,
    }
}

/// Upper bound of the arena bytes for a site, with its filter, texts and floats.
pub(super) fn arena_per_site(input: &ModuleInput<'_>) -> u64 {
    let longest = input.filters.iter().flatten().map(code_bytes).max();
    let filter = longest.map_or(0, |bytes| (FILTER_BYTES + bytes) as u64).next_multiple_of(64);
    let deferred = input.filters.iter().flatten().any(|filter| filter.late.is_some());
    let deferred = if deferred { DEFERRED_BYTES } else { 0 };
    let kept = input.filters.iter().flatten().map(|filter| filter.kept.len()).max().unwrap_or(0);
    let deferred = deferred + KEPT_BYTES * kept as u64;
    let texts = input.requests.iter().map(|request| texts(request.action)).max().unwrap_or(0);
    let tallied = |filter: &TargetFilter| filter.tally.as_ref().map_or(0, |tally| tally.texts().count_ones());
    let texts = texts.max(input.filters.iter().flatten().map(tallied).max().unwrap_or(0));
    // An entry has floats, and an exit has further results.
    let floats = |request: &ActionRequest| match request.action {
        Action::Record { floats, .. } => {
            floats.arguments.count_ones().max(floats.results.words().saturating_sub(1) as u32)
        }
        _ => 0,
    };
    let floats = u64::from(input.requests.iter().map(floats).max().unwrap_or(0)) * FLOAT_BYTES;
    let loads =
        |filter: &TargetFilter| filter.reads.iter().map(|read| read.offsets.len() + read.words()).sum();
    let fields: usize = input.filters.iter().flatten().map(loads).max().unwrap_or(0);
    let unwinds = |request: &ActionRequest| !matches!(unwind(request.action), Unwind::None);
    let keyed = |filter: &TargetFilter| filter.program.as_ref().is_some_and(|hit| !hit.stacks.is_empty());
    let stack = if input.requests.iter().any(unwinds) { STACK_BYTES } else { 0 }
        + if input.filters.iter().flatten().any(keyed) { KEYED_BYTES } else { 0 };
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

/// Whether no site needs more than the usual bytes, most of which its stub then leaves free.
pub(super) fn has_short_stubs(input: &ModuleInput<'_>) -> bool {
    arena_per_site(input) == ARENA_PER_SITE
}

/// Bytes of code that move a hit's arguments to where stubs expect them.
fn moving(input: &ModuleInput<'_>) -> u64 {
    let is_mark = |filter: &TargetFilter| !filter.operands.is_empty();
    let mark = if input.filters.iter().flatten().any(is_mark) { MARK_BYTES } else { 0 };
    let taken = |filter: &TargetFilter| filter.taken.iter().map(bytes_of).sum::<u64>();
    let taken = input.filters.iter().flatten().map(taken).max().unwrap_or(0).next_multiple_of(64);
    mark + taken + if input.image.is_go() { GO_BYTES } else { 0 }
}

/// Bytes of code that puts a value into its argument's place.
const fn bytes_of(taken: &Taken) -> u64 {
    match taken {
        Taken::Text { .. } => TEXT_NUMBER_BYTES,
        Taken::Number { .. } | Taken::Unknown => NUMBER_BYTES,
    }
}
