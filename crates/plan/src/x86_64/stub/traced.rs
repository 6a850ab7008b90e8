//! Everything that the code of one probe's records depends on, and the parts that such code is made of.
//!
//! In: addresses and sizes from the layout, a filter, what is dead. Out: plain values, and the parts.
//! Does not: emit code; each part does that in its own file.
//!
//! | part | what it owns |
//! |---|---|
//! | [`Saves`] | the registers that the code overwrites |
//! | [`HitFilter`] | the decision |
//! | [`Texts`] | copies of what arguments point to |
//! | [`Walk`] | the stack |
//! | [`RingWriter`] | the record in its ring |
//! | [`Marks`] | what an entry leaves for exits |

use trapline_record::addr::Bias;
use trapline_record::ring::RecordKind;
use trapline_record::trampolines::Trampolines;

use super::filtering::{Filtered, HitFilter};
use super::latency::{Latency, Marks};
use super::machine::{Liveness, Machine};
use super::passed::Passed;
use super::put::{RingWriter, Rings};
use super::saves::Saves;
use super::stack::Walk;
use super::text::Texts;
use crate::machine::ThreadId;
use crate::request::{Floats, Read, Unwind};

/// Everything that one probe's records depend on.
#[derive(Clone, Copy, Debug)]
pub struct Traced<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// Where the records go.
    pub rings: &'a Rings,
    /// The probe that was hit; below 2³¹.
    pub probe: u32,
    /// Probes share the code, and the stub has passed the number of the one that was hit.
    pub passed: Option<Passed>,
    /// Address of the counter of dropped records on line 0; of probe 0's if the number is passed.
    pub dropped: u64,
    /// What is dead where the stub runs.
    pub site: Liveness,
    /// Decides which entries are recorded; `None` for all.
    pub filter: Option<Filtered<'a>>,
    /// Bit `n`: at an entry, argument `n` points to text.
    pub texts: u8,
    /// In a compact ring: those of them that end at a 0.
    pub ended: u8,
    /// Floats, which the record of an entry holds behind arguments and texts; and what the record of a return holds.
    pub floats: Floats,
    /// The function is Go's, and returns in Go's registers.
    pub by_go: bool,
    /// In a compact ring: the record of a return holds the value.
    pub valued: bool,
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
    /// Where the probe's file is mapped.
    pub bias: Bias,
}

impl<'a> Traced<'a> {
    /// Where entries leave marks, if they do.
    pub(super) fn entry_marks(&self) -> Option<Marks> {
        self.marks.map(|latency| Marks::of(&latency, self.probe, self.site))
    }
    /// Whether a record of this kind holds a stack.
    fn holds_stack(&self, kind: RecordKind) -> bool {
        kind == RecordKind::Entry && self.unwind != Unwind::None
    }
    pub(super) fn saves(&self, kind: RecordKind) -> Saves {
        let saves = Saves::of(self.site, kind, self.holds_stack(kind));
        if self.passed.is_some_and(|passed| passed.goes_on) { saves.begun() } else { saves }
    }
    /// The texts and fields to copy. A thread without a known number has none (the planner refuses that).
    pub(super) fn texts(&self, kind: RecordKind) -> Texts<'a> {
        let (id, go) = (self.rings.id, self.rings.stacks.go);
        match kind == RecordKind::Entry && self.unwind == Unwind::None && id != ThreadId::Unknown {
            true => Texts {
                texts: self.texts,
                ended: self.ended,
                fields: self.fields,
                known: self.rings.known,
                machine: Some(self.machine),
                id,
                go,
                step: self.saves(kind).step(),
                beside: !self.at_entry,
                bias: self.bias,
            },
            false => Texts::default(),
        }
    }
    /// The stack part of a record, if it has one.
    pub(super) fn walk(&self, kind: RecordKind) -> Option<Walk> {
        let Self { unwind, at_entry, trampolines, .. } = *self;
        let (stacks, most) = (self.rings.stacks, self.rings.area.most);
        let step = self.saves(kind).step();
        self.holds_stack(kind).then_some(Walk { stacks, unwind, step, most, at_entry, trampolines })
    }
    /// The filter's code, for hits of this kind.
    pub(super) fn hit_filter(&self, kind: RecordKind) -> HitFilter<'a> {
        HitFilter {
            machine: self.machine,
            id: self.rings.id,
            filtered: self.filter,
            kind,
            reads: self.fields,
            first_field: self.texts(RecordKind::Entry).first_field(),
            depth: self.texts(kind).depth(),
        }
    }
    /// The way of a record of this kind into its ring.
    pub(super) fn ring_writer(&self, kind: RecordKind) -> RingWriter<'a> {
        RingWriter {
            machine: self.machine,
            rings: self.rings,
            probe: self.probe,
            is_passed: self.passed.is_some(),
            kind,
            texts: self.texts(kind),
            floats: self.floats,
            by_go: self.by_go,
            stack: self.holds_stack(kind),
            step: self.saves(kind).step(),
        }
    }
}
