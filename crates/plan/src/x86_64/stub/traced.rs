//! Everything that the code of one probe's records depends on.
//!
//! In: addresses and sizes from the layout, a filter, what is dead. Out: plain values; the files that emit the
//! parts of such code each add methods to [`Traced`].
//! Does not: emit code.

use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::trampolines::Trampolines;

use super::filter::ARGUMENT;
use super::latency::{Latency, Timed};
use super::machine::{Liveness, Machine};
use super::text::PageNotes;
use crate::filter::TargetFilter;
use crate::machine::{Stacks, ThreadId};
use crate::request::{Floats, Read, Unwind};

/// Number of arguments that registers hold.
pub(super) const ARGUMENTS: usize = ARGUMENT.len();

/// Where records go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rings {
    /// Shape of the rings; its offset is not used. There is one ring for each line of counters but the last;
    /// without rseq, [`RingArea::shared`] for that number of CPUs.
    pub area: RingArea,
    /// Address of ring 0.
    pub base: u64,
    /// How a thread's number is read. If that takes a system call, only records of entries hold the number,
    /// and records of stacks do not.
    pub id: ThreadId,
    /// Where stacks end.
    pub stacks: Stacks,
    /// Where the notes lie about pages that texts may be loaded from; `None` if the kernel copies all texts.
    pub known: Option<PageNotes>,
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
    /// What is dead where the stub runs.
    pub site: Liveness,
    /// Decides which entries are recorded; `None` for all.
    pub filter: Option<Filtered<'a>>,
    /// Bit `n`: at an entry, argument `n` points to text.
    pub texts: u8,
    /// Floats. The record holds them behind arguments and texts; at a return, in place of the value.
    pub floats: Floats,
    /// What is read from memory at an entry. The record holds it behind the floats.
    pub fields: &'a [Read],
    /// Where entries leave marks for exits, so that exits of filtered entries are not recorded. `None` if all
    /// are recorded.
    pub marks: Option<Latency>,
    /// Which part of the stack an entry's record holds; if any, it holds neither arguments nor texts.
    pub unwind: Unwind,
    /// The stub stands at a function's entry.
    pub at_entry: bool,
    /// Return trampolines that may stand in place of return addresses. They must be mapped.
    pub trampolines: Option<Trampolines>,
}

/// Where calls leave marks, with everything that this depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) machine: Machine,
    latency: Latency,
    probe: u32,
    site: Liveness,
}

impl Marks {
    pub(super) const fn timed(&self) -> Timed<'_> {
        Timed { machine: &self.machine, latency: &self.latency, function: self.probe, site: self.site }
    }
}

impl Traced<'_> {
    /// Where entries leave marks, if they do.
    pub(super) fn entry_marks(&self) -> Option<Marks> {
        let Self { machine, probe, site, .. } = *self;
        Some(Marks { machine: *machine, latency: self.marks?, probe, site })
    }
    /// Whether a record of this kind holds a stack.
    pub(super) fn holds_stack(&self, kind: RecordKind) -> bool {
        kind == RecordKind::Entry && self.unwind != Unwind::None
    }
}
