//! Everything that the code of one probe's records depends on, and the parts that such code is made of.
//!
//! In: addresses and sizes from the layout, a filter. Out: plain values, and the parts.
//! Does not: emit code; each part does that in its own file.
//!
//! | part | what it owns |
//! |---|---|
//! | [`Saves`] | the registers that the code overwrites |
//! | [`HitFilter`] | the decision |
//! | [`FilteredPath`] | what comes before the record, and the paths of hits that do not pass |
//! | [`Texts`] | copies of what arguments point to |
//! | [`Walk`] | the stack |
//! | [`RingWriter`] | the record in its ring |
//! | [`Marks`] | what an entry leaves for exits |

use trapline_record::addr::Bias;
use trapline_record::ring::RecordKind;

use super::filtered_path::FilteredPath;
use super::filtering::{Filtered, HitFilter};
use super::latency::{Latency, Marks};
use super::machine::Machine;
use super::put::{RingWriter, Rings};
use super::saves::Saves;
use super::stack::Walk;
use super::text::Texts;
use crate::filter::Tree;
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
    /// Address of the counter of dropped records on line 0.
    pub dropped: u64,
    /// Decides which entries are recorded; `None` for all.
    pub filter: Option<Filtered<'a>>,
    /// Where entries leave marks for exits, so that exits of filtered entries are not recorded. `None` if all
    /// are recorded.
    pub marks: Option<Latency>,
    /// Bit `n`: at an entry, argument `n` points to text.
    pub texts: u8,
    /// In a compact ring: those of them that end at a 0.
    pub ended: u8,
    /// Floats, which the record of an entry holds behind arguments and texts; and what the record of a return holds.
    pub floats: Floats,
    /// In a compact ring: the record of a return holds the value.
    pub valued: bool,
    /// What is read from memory at an entry. The record holds it behind the floats.
    pub fields: &'a [Read],
    /// Which part of the stack an entry's record holds; if any, it holds neither arguments nor texts.
    pub unwind: Unwind,
    /// The stub stands at a function's entry.
    pub at_entry: bool,
    /// The call belongs to the goroutine that x28 names. What is recorded in place of the stack pointer is
    /// the same wherever its stack is.
    pub goroutine: bool,
    /// Where the probe's file is mapped.
    pub bias: Bias,
}

impl<'a> Traced<'a> {
    /// Where entries leave marks, if they do.
    fn entry_marks(&self) -> Option<Marks> {
        self.marks.map(|latency| Marks::of(self.machine, &latency, self.probe, self.goroutine))
    }
    /// Whether a record of this kind holds a stack.
    fn holds_stack(&self, kind: RecordKind) -> bool {
        kind == RecordKind::Entry && self.unwind != Unwind::None
    }
    /// The condition that must hold for fields.
    pub(super) fn by_fields(&self, kind: RecordKind) -> Option<&'a Tree> {
        let filtered = self.filter.filter(|_| kind == RecordKind::Entry);
        filtered.and_then(|filtered| filtered.filter.fields.as_ref())
    }
    pub(super) fn saves(&self, kind: RecordKind) -> Saves {
        Saves::of(self.holds_stack(kind), self.by_fields(kind).is_some())
    }
    /// The texts and fields that an entry's record holds.
    pub(super) fn texts(&self, kind: RecordKind) -> Texts<'a> {
        let Self { texts, fields, goroutine, .. } = *self;
        match kind == RecordKind::Entry && self.unwind == Unwind::None {
            true => Texts {
                texts,
                ended: self.ended,
                fields,
                id: self.rings.id,
                goroutine,
                step: self.saves(kind).step(),
                beside: !self.at_entry,
                bias: self.bias,
            },
            false => Texts::default(),
        }
    }
    /// The stack part of a record, if it has one.
    pub(super) fn walk(&self, kind: RecordKind) -> Option<Walk> {
        let Self { unwind, at_entry, goroutine, .. } = *self;
        let (stacks, most) = (self.rings.stacks, self.rings.area.most);
        let step = self.saves(kind).step();
        self.holds_stack(kind).then_some(Walk { stacks, unwind, step, most, at_entry, goroutine })
    }
    /// The filter's code, if there is a filter.
    pub(super) fn hit_filter(&self) -> Option<HitFilter<'a>> {
        let (machine, id) = (self.machine, self.rings.id);
        self.filter.map(|filtered| HitFilter { machine, id, filtered })
    }
    /// What comes before a record of this kind, and the paths of hits that do not pass.
    pub(super) fn filtered_path(&self, kind: RecordKind) -> FilteredPath<'a> {
        FilteredPath {
            machine: self.machine,
            id: self.rings.id,
            hits: self.hit_filter(),
            marks: self.entry_marks(),
            kind,
            by_fields: self.by_fields(kind),
            texts: self.texts(kind),
            step: self.saves(kind).step(),
            dropped: self.dropped,
        }
    }
    /// The way of a record of this kind into its ring.
    pub(super) fn ring_writer(&self, kind: RecordKind) -> RingWriter<'a> {
        RingWriter {
            machine: self.machine,
            rings: self.rings,
            probe: self.probe,
            kind,
            texts: self.texts(kind),
            floats: self.floats,
            stack: self.holds_stack(kind),
            step: self.saves(kind).step(),
            goroutine: self.goroutine,
        }
    }
}
