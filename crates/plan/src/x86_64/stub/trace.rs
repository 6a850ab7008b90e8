//! One hit, one record in the ring of the CPU on which it happened (`record::ring`).
//!
//! In: where the rings lie, which probe, what is recorded (arguments at an entry, the value at a return),
//! what is dead. Out: code that writes the record, or counts it as dropped if the ring is full, and runs into
//! the displaced code.
//! One restartable sequence reads the clock, finds the CPU's ring, fills the slot behind the head and commits
//! by storing the head. In a process without rseq, a ring is locked for that by a compare-and-swap. If no
//! ring is free right away, the record is dropped.
//! A dropped record adds one to the probe's counter. So does the record of a thread without an rseq area in a
//! process whose other threads have one. A filter comes before all that: a hit that it rejects adds one to a
//! counter of its own. Written + dropped + filtered = hits. If exits are recorded too, the entry leaves a
//! mark for them (`latency::mark`).
//! A filter's usual answer is no. If the filter can be evaluated without spoiling what only a record spoils,
//! rejected hits run straight through, and so do exits of rejected calls (`reject`). The record's code then
//! lies behind.
//! Registers are saved below the stack pointer, as in `count`.

use trapline_record::ring::{Kind, RingArea};
use trapline_record::trampolines::Trampolines;

use super::asm::Asm;
use super::deferred::defer;
use super::filter::ARGUMENT;
use super::filtered_path::{FilteredPath, Unmarked};
use super::filtering::{FilterExits, Filtered};
use super::saves::Second;
use super::stack::Walk;
use super::text::PageNotes;
use super::written::Written;
use super::{Latency, Liveness, Machine, Pending, ThreadId, Timed};
use crate::request::{Floats, Read, Stacks, Unwind};

/// Number of arguments that registers hold.
pub const ARGUMENTS: usize = ARGUMENT.len();

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

/// What is left to append behind the displaced code.
#[derive(Clone, Debug)]
pub(super) enum Tail<'a> {
    /// The record's code comes before the displaced code.
    Recorded(Written),
    /// The record's code comes behind it, for hits that pass.
    FilteredPath(Recorded<'a>, FilteredPath),
    /// The record's code comes behind it, for exits that have a mark.
    Unmarked(Recorded<'a>, Unmarked),
}

/// What is recorded, and the displaced code, at which it goes on then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded<'a> {
    traced: Traced<'a>,
    kind: Kind,
    values: usize,
    behind: u64,
}

/// Where calls leave marks, with everything that this depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    machine: Machine,
    latency: Latency,
    probe: u32,
    site: Liveness,
}

impl Marks {
    pub(super) const fn timed(&self) -> Timed<'_> {
        Timed { machine: &self.machine, latency: &self.latency, function: self.probe, site: self.site }
    }
}

/// Appends the part of a stub that comes before the displaced code. At an entry it records the first `values`
/// of the [`ARGUMENTS`]; at a return it records the returned value, and `values` are those of the entry. The
/// stub starts at `at`.
pub fn trace<'a>(out: &mut Vec<u8>, at: u64, traced: &Traced<'a>, kind: Kind, values: usize) -> Pending<'a> {
    let mut asm = Asm::new(out, at);
    if let Some(deferred) = defer(&mut asm, traced, kind, values) {
        return deferred;
    }
    let recorded = |asm: &Asm<'_>| Recorded { traced: *traced, kind, values, behind: asm.here() };
    let tail = if traced.rejects_early(kind) {
        let rejected = traced.reject(&mut asm);
        Tail::FilteredPath(recorded(&asm), rejected)
    } else if let (Kind::Return | Kind::Tail, Some(marks)) = (kind, traced.entry_marks()) {
        let unmarked = traced.unmarked(&mut asm, marks);
        Tail::Unmarked(recorded(&asm), unmarked)
    } else {
        Tail::Recorded(traced.record(&mut asm, kind, values))
    };
    Pending::new(&asm, super::Kind::Traced(tail))
}

impl Traced<'_> {
    pub(super) fn walk(&self, kind: Kind) -> Option<Walk> {
        let Self { unwind, at_entry, trampolines, .. } = *self;
        let (stacks, most) = (self.rings.stacks, self.rings.area.most);
        Walk::wanted(unwind, kind).then(|| Walk {
            stacks,
            unwind,
            step: self.step(),
            most,
            at_entry,
            trampolines,
        })
    }
    /// Where entries leave marks, if they do.
    pub(super) fn entry_marks(&self) -> Option<Marks> {
        let Self { machine, probe, site, .. } = *self;
        Some(Marks { machine: *machine, latency: self.marks?, probe, site })
    }
    /// Emits the whole code for a hit that is recorded, or that is rejected by a filter which has to save as
    /// much.
    fn record(&self, asm: &mut Asm<'_>, kind: Kind, values: usize) -> Written {
        self.enter_first(asm, kind);
        Second::enter(asm);
        self.enter_rest(asm, kind);
        let early = kind == Kind::Entry && self.filters_by_thread();
        if early {
            self.rings.id.ask(asm);
        }
        let passed = match (kind, self.filter) {
            (Kind::Entry, Some(filtered)) => self.pass(asm, filtered, Kind::Entry),
            _ => FilterExits::default(),
        };
        self.written(asm, kind, values, passed)
    }
}

impl Tail<'_> {
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

impl Recorded<'_> {
    fn append(&self, asm: &mut Asm<'_>) -> Written {
        self.traced.enter_rest(asm, self.kind);
        let written = self.traced.written(asm, self.kind, self.values, FilterExits::default());
        asm.jmp(self.behind);
        written
    }
}
