//! Everything that the code of one probe's records depends on.
//!
//! In: addresses and sizes from the layout, a filter. Out: plain values; the files that emit the parts of such
//! code each add methods to [`Traced`].
//! Does not: emit code.

use trapline_record::ring::{RecordKind, RingArea};

use super::latency::Latency;
use super::machine::Machine;
use crate::filter::{TargetFilter, Tree};
use crate::machine::{Stacks, ThreadId};
use crate::request::{Floats, Read, Unwind};

/// Number of arguments that a record can hold, of those in registers.
pub const ARGUMENTS: usize = 6;

/// Where records go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Shape of the rings; its offset is not used. There is one ring for each line of counters but the last;
    /// without rseq, [`RingArea::shared`] for that number of CPUs.
    pub area: RingArea,
    /// Address of ring 0.
    pub base: u64,
    /// How a thread's number is read. If that would take a system call, records hold none: the call loses
    /// what vectors of SVE hold above 128 bits.
    pub id: ThreadId,
    /// Where stacks end.
    pub stacks: Stacks,
}

/// A filter, and the words in which it counts.
#[derive(Clone, Copy, Debug)]
pub struct Filtered<'a> {
    /// Which hits pass.
    pub filter: &'a TargetFilter,
    /// Address on line 0 of two words: number of hits that did not pass, and number of hits to leave out
    /// before the next sample.
    pub words: u64,
    /// Address of the pass-over table, if the filter depends on thread names.
    pub names: Option<u64>,
}

/// Everything that one probe's records depend on.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// Where the records go.
    pub rings: &'a Rings,
    /// The probe that was hit; below 2³¹.
    pub probe: u32,
    /// Address of the counter of dropped records on line 0.
    pub dropped: u64,
    /// Decides which entries are recorded; `None` for all.
    pub filter: Option<Filtered<'a>>,
    /// Where entries leave marks for exits, so that exits of filtered entries are not recorded. `None` if all
    /// are recorded.
    pub marks: Option<Latency>,
    /// Bit `n`: at an entry, argument `n` points to text.
    pub texts: u8,
    /// Floats. The record holds them behind arguments and texts; at a return, in place of the value.
    pub floats: Floats,
    /// What is read from memory at an entry. The record holds it behind the floats.
    pub fields: &'a [Read],
    /// Which part of the stack an entry's record holds; if any, it holds neither arguments nor texts.
    pub unwind: Unwind,
    /// The stub stands at a function's entry.
    pub at_entry: bool,
    /// The call belongs to the goroutine that x28 names. What is recorded in place of the stack pointer is
    /// the same wherever its stack is.
    pub goroutine: bool,
}

impl Traced<'_> {
    /// Whether a record of this kind holds a stack.
    pub(super) fn holds_stack(&self, kind: RecordKind) -> bool {
        kind == RecordKind::Entry && self.unwind != Unwind::None
    }
    /// The condition that must hold for fields.
    pub(super) fn by_fields(&self) -> Option<&'_ Tree> {
        self.filter.and_then(|filtered| filtered.filter.fields.as_ref())
    }
}
