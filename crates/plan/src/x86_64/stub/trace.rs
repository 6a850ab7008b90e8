//! One hit, one record in the ring of the CPU on which it happened (`record::ring`).
//!
//! In: where the rings lie, which probe, what is recorded (arguments at an entry, the value at a return),
//! what is dead. Out: code that writes the record, or counts it as dropped if the ring is full, and runs into
//! the displaced code.
//! One restartable sequence finds the CPU's ring, fills the slot behind the head and commits by storing the head
//! (`programs::records`). In a process without rseq, a ring is locked for that by a compare-and-swap. If no
//! ring is free right away, the record is dropped.
//! A dropped record adds one to the probe's counter. So does the record of a thread without an rseq area in a
//! process where other threads have one. A filter comes before all that: a hit that it rejects adds one to a
//! counter of its own. Written + dropped + filtered = hits. If exits are recorded too, the entry leaves a
//! mark for them (`latency::mark`).
//! A filter's usual answer is no. If the filter needs only the registers of the first save, rejected hits run
//! straight through, and so do exits of rejected calls (`reject`). The record's code then lies behind.
//!
//! The order of the parts, and what is saved while each runs. `saves` has the offsets, `put` the registers:
//!
//! ```text
//!   Recorded       First, Second, rest | filter | mark | record (`written`) | all loaded | displaced code
//!   FilteredPath   First | filter | (Second) mark, count | First loaded | displaced code     does not pass
//!                    \ Second, rest | record | all loaded | jump to the displaced code       passes
//!   Unmarked       First, Second | look for a mark | both loaded | displaced code            no mark
//!                    \ rest | record | all loaded | jump to the displaced code               a mark
//! ```

use trapline_record::ring::RecordKind;

use super::asm::Asm;
use super::filtered_path::{FilteredPath, Unmarked};
use super::filtering::FilterExits;
use super::saves::Second;
use super::threads;
use super::traced::Traced;
use super::written::Written;

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) enum TraceTail<'a> {
    /// The record's code comes before the displaced code.
    Recorded(Written<'a>),
    /// The record's code comes behind it, for hits that pass.
    FilteredPath(Recorded<'a>, FilteredPath),
    /// The record's code comes behind it, for exits that have a mark.
    Unmarked(Recorded<'a>, Unmarked),
}

/// What is recorded, and the displaced code, at which it goes on then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded<'a> {
    traced: Traced<'a>,
    kind: RecordKind,
    values: usize,
    behind: u64,
}

/// Appends the part of a stub that comes before the displaced code. At an entry it records the first `values`
/// of the [`ARGUMENTS`](super::filter::ARGUMENTS); at a return it records the returned value, and `values` are
/// those of the entry.
pub(super) fn trace<'a>(
    asm: &mut Asm<'_>,
    traced: &Traced<'a>,
    kind: RecordKind,
    values: usize,
) -> TraceTail<'a> {
    let recorded = |asm: &Asm<'_>| Recorded { traced: *traced, kind, values, behind: asm.here() };
    if traced.hit_filter(kind).rejects_early() {
        let rejected = FilteredPath::emit(asm, traced);
        TraceTail::FilteredPath(recorded(asm), rejected)
    } else if let (RecordKind::Return | RecordKind::Tail, Some(marks)) = (kind, traced.entry_marks()) {
        let unmarked = Unmarked::emit(asm, traced.saves(kind), marks);
        TraceTail::Unmarked(recorded(asm), unmarked)
    } else {
        TraceTail::Recorded(record(asm, traced, kind, values))
    }
}

/// Emits the whole code for a hit that is recorded, or that is rejected by a filter which has to save as much.
fn record<'a>(asm: &mut Asm<'_>, traced: &Traced<'a>, kind: RecordKind, values: usize) -> Written<'a> {
    let hits = traced.hit_filter(kind);
    traced.saves(kind).enter(asm);
    let decides = kind == RecordKind::Entry;
    if decides && hits.by_thread() {
        threads::ask(hits.id, asm);
    }
    let passed = if decides { hits.pass(asm) } else { FilterExits::default() };
    Written::emit(asm, traced, kind, values, passed)
}

impl TraceTail<'_> {
    /// Appends the record's code if that comes behind, the code for hits that are not recorded, descriptors
    /// and addresses. Returns the instructions that may fault, and where a thread goes on then.
    pub(super) fn finish(self, asm: &mut Asm<'_>) -> Vec<(u64, u64)> {
        match self {
            Self::Recorded(written) => written.finish(asm),
            Self::FilteredPath(recorded, rejected) => {
                rejected.begin(asm);
                Second::enter(asm);
                let written = recorded.append(asm);
                rejected.finish(asm);
                written.finish(asm)
            }
            Self::Unmarked(recorded, unmarked) => {
                unmarked.begin(asm);
                recorded.append(asm).finish(asm)
            }
        }
    }
}

impl<'a> Recorded<'a> {
    fn append(&self, asm: &mut Asm<'_>) -> Written<'a> {
        self.traced.saves(self.kind).enter_rest(asm);
        let written = Written::emit(asm, &self.traced, self.kind, self.values, FilterExits::default());
        asm.jmp(self.behind);
        written
    }
}
