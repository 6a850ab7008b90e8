//! How a record gets into a ring: which ring, which slot, and the record's words.
//!
//! In: where the rings lie, what a record of this kind holds. Out: code that finds this CPU's ring or locks one
//! (`record::ring`), fills the slot behind its head, and publishes it. The steps are those of `programs::records`; this file
//! puts its parts together with what no program can do.
//!
//! ```text
//!   ring = base + 2·stride·n, + stride at each try     `lock`; n = by_thread(lines - 1), below the number of CPUs
//!
//!                  x16 A     x17 B          x14 RING   x15 AT           x13 SLOT       x12 TIME     x11 C
//!   find           scratch   the area       ring       [ring + HEAD]    -              -            scratch
//!   lock           scratch   store failed   ring       its head         head + LOCKED  tries left   scratch
//!   slot           -         -              ring       head             slot           -            -
//!   walk, copies   scratch   scratch        ring       bytes, if long   slot           scratch      scratch
//!   clock, words   scratch   scratch        ring       the same         slot           the time     scratch
//! ```
//!
//! All of them use flags. A lock is taken with acquire, so that what its last holder wrote comes before what we publish
//! with it. The number of a thread is 0 in records unless it is kept (`ThreadId::At`).

use trapline_record::calls::WORD;
use trapline_record::ring::{FIRST_VALUE, LOCKED, RecordKind, RingArea, TAIL, TRIES, first_float};

use super::asm::{Asm, Cond, Fix};
use super::counted::by_thread;
use super::filter::ARGUMENTS;
use super::machine::Machine;
use super::record_parts::{RecordInputs, RecordKey};
use super::saves::{A, AT, B, C, RING, SLOT, TIME};
use super::stack::Walk;
use super::text::Texts;
use crate::machine::{Stacks, ThreadId};
use crate::programs::records::{Behind, Compact, Part, Publish, Texts as PackedTexts};
use crate::request::{Floats, Results};

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

/// The way of one probe's records of one kind into their ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingWriter<'a> {
    pub(super) machine: &'a Machine,
    pub(super) rings: &'a Rings,
    pub(super) probe: u32,
    pub(super) kind: RecordKind,
    /// What was copied for the record.
    pub(super) texts: Texts<'a>,
    pub(super) floats: Floats,
    /// The record holds a stack, and no values.
    pub(super) stack: bool,
    /// By how many bytes the stack pointer is below the program's, without the copies.
    pub(super) step: u32,
    /// The key is a goroutine's place.
    pub(super) goroutine: bool,
}

impl RingWriter<'_> {
    fn inputs(&self, key: RecordKey) -> RecordInputs {
        let (rings, id) = (self.rings.base, self.rings.id);
        let is_compact = self.rings.area.is_compact();
        let behind = Behind::default();
        RecordInputs { rings, kind: self.kind, id, probe: self.probe, key, is_compact, behind }
    }
    /// Makes the copied texts as long as they are, for a compact ring. Uses `A`, `B`, `C`, `AT`, `SLOT`, `RING` and flags.
    pub(super) fn pack(&self, asm: &mut Asm, behind: Behind) {
        if behind.texts.many > 0 {
            self.inputs(RecordKey::Itself).append(asm, Part::Packed(behind.texts));
        }
    }
    /// A compact ring: `RING` = this CPU's, then a record in it, behind a context if `is_pair`. Jumps if the thread has no
    /// area; if the ring is full; and, without a pair, if another context is needed.
    pub(super) fn write_compact(&self, asm: &mut Asm, is_pair: bool, behind: Behind) -> [Option<Fix>; 3] {
        let (area, cpus) = (&self.rings.area, self.machine.lines.saturating_sub(1));
        let inputs = self.inputs(RecordKey::Stack(self.texts.depth() + self.step));
        let inputs = RecordInputs { behind, ..inputs };
        let mut leave = inputs.append(asm, Part::find_compact(area, cpus));
        asm.clock(TIME);
        let of = Compact { words: area.bytes / WORD, values: behind.fixed(), texts: behind.texts.many };
        leave.extend(inputs.append(asm, if is_pair { Part::Pair(of) } else { Part::Word(of) }));
        [Part::NO_CPU, Part::NO_ROOM, Part::SWITCH]
            .map(|outcome| leave.iter().find(|(other, _)| *other == outcome).map(|(_, fix)| *fix))
    }
    /// What stands behind a record in a compact ring; `values` as for [`Self::copies`]. An exit has the first word of its value,
    /// and only if it is `valued`.
    pub(super) fn behind(&self, values: usize, valued: bool) -> Behind {
        let floats = self.floats;
        match self.kind {
            RecordKind::Entry => Behind {
                arguments: values.min(ARGUMENTS) as u8,
                floats: floats.arguments,
                fields: self.texts.fields_words(),
                returned: false,
                texts: PackedTexts::of(self.texts.texts, self.texts.ended),
            },
            RecordKind::Return if valued && floats.results.general == 0 => {
                Behind { floats: 1, ..Behind::default() }
            }
            RecordKind::Return => Behind { returned: valued, ..Behind::default() },
            RecordKind::Tail => Behind::default(),
        }
    }
    /// Finds this CPU's ring. Jumps if the thread has no area, or if the ring is `full`.
    pub(super) fn find(&self, asm: &mut Asm, full: u32) -> (Fix, Fix) {
        let cpus = self.machine.lines.saturating_sub(1);
        let leave = self.inputs(RecordKey::Itself).append(asm, Part::find(&self.rings.area, cpus, full));
        let mut of = |outcome: u8| {
            let found = leave.iter().find(|(other, _)| *other == outcome);
            found.map_or_else(|| asm.b_later(), |(_, fix)| *fix)
        };
        (of(Part::NO_CPU), of(Part::NO_ROOM))
    }
    /// Steps L1 to L3: locks a ring. Jumps if all rings were locked, or if one is `full`.
    pub(super) fn lock(&self, asm: &mut Asm, full: u32) -> (Fix, Fix) {
        let area = &self.rings.area;
        // No register holds the CPU's number; a thread keeps to its rings.
        by_thread(asm, [A, C], self.machine.lines.saturating_sub(1));
        asm.constant(C, 2 * area.stride());
        asm.constant(RING, self.rings.base);
        asm.mul_add(RING, A, C, RING);
        asm.number(TIME, TRIES);
        let again = asm.here();
        asm.load(AT, RING);
        let mut taken = vec![asm.if_bit_later(AT, LOCKED.trailing_zeros())];
        let full = unless_room(asm, full);
        asm.add_imm(SLOT, AT, LOCKED as i32);
        let locked = if self.machine.lse {
            asm.mov(A, AT);
            asm.compare_swap(A, SLOT, RING);
            asm.compare(A, AT);
            asm.if_later(Cond::Equal)
        } else {
            let once_more = asm.here();
            asm.load_exclusive_acquire(A, RING);
            asm.compare(A, AT);
            taken.push(asm.if_later(Cond::NotEqual));
            asm.store_exclusive(B, SLOT, RING);
            // The word was not changed: a signal, or a line that went away, is no reason to leave the ring.
            asm.unless_zero(B, once_more);
            asm.b_later()
        };
        taken.into_iter().for_each(|fix| asm.bind(fix));
        asm.constant(C, area.stride());
        asm.add(RING, RING, C);
        asm.subtract32(TIME, 1);
        asm.unless_zero(TIME, again);
        let busy = asm.b_later();
        asm.bind(locked);
        (busy, full)
    }
    /// `SLOT` = the slot that is `ahead` of the head in `AT`.
    pub(super) fn slot(&self, asm: &mut Asm, ahead: u32) {
        let part = Part::Slot { bytes: self.rings.area.bytes, ahead };
        self.inputs(RecordKey::Itself).append(asm, part);
    }
    /// Writes a record, and publishes it, as `find` or `lock` left `RING` and `AT`.
    pub(super) fn write(&self, asm: &mut Asm, values: usize, walk: Option<Walk>) {
        self.slot(asm, 0);
        if let Some(walk) = walk {
            walk.fill(asm);
        }
        let values = if walk.is_some() { 0 } else { values };
        self.copies(asm, values);
        asm.clock(TIME);
        let above = self.texts.depth() + self.step;
        let key = if self.goroutine { RecordKey::Goroutine(above) } else { RecordKey::Stack(above) };
        self.words(asm, values, key, Some(self.publish(self.rings.area.slot, walk.is_some())));
    }
    /// How a record of so many bytes is published.
    pub(super) const fn publish(&self, bytes: u32, is_long: bool) -> Publish {
        Publish { bytes, is_long, is_locked: self.machine.rseq.is_none() }
    }
    /// Fills the words of the record at `SLOT`, with `TIME`, and publishes it if that is in a ring. Uses `A`, `B` and `C`.
    pub(super) fn words(&self, asm: &mut Asm, values: usize, key: RecordKey, publish: Option<Publish>) {
        let all = match self.kind {
            RecordKind::Entry => values.min(ARGUMENTS),
            RecordKind::Return => self.floats.results.general.into(),
            RecordKind::Tail => 0,
        };
        let values = all.min(self.rings.area.values()) as u8;
        self.inputs(key).append(asm, Part::Words { values, publish });
    }
    /// Copies into the record at `SLOT` what no program can: texts, fields and floats. Uses `A`.
    pub(super) fn copies(&self, asm: &mut Asm, values: usize) {
        let (kind, texts) = (self.kind, self.texts);
        if kind == RecordKind::Return {
            let Results { general, vectors } = self.floats.results;
            let words = FIRST_VALUE as u32 + u32::from(general)..self.rings.area.slot / 8;
            for (vector, word) in (0..vectors.into()).zip(words) {
                asm.store_vector(vector, SLOT, word * 8);
            }
        }
        let first = first_float(values.min(ARGUMENTS), texts.count() as usize);
        texts.fill(asm, first as u32 + self.floats.arguments.count_ones());
        if kind == RecordKind::Entry && !self.stack {
            let vectors = (0..8).filter(|n| self.floats.arguments >> n & 1 == 1);
            for (vector, word) in vectors.zip(first as u32..self.rings.area.slot / 8) {
                asm.store_vector(vector, SLOT, word * 8);
            }
        }
    }
}

/// Jumps if `AT - [RING + TAIL] >= full`. Uses `A`, `C` and flags.
fn unless_room(asm: &mut Asm, full: u32) -> Fix {
    asm.load_at(C, RING, TAIL as u32);
    asm.sub(C, AT, C);
    asm.number(A, full);
    asm.compare(C, A);
    asm.if_later(Cond::AboveEq)
}
