//! How a record gets into a ring: which ring, which slot, and the record's words.
//!
//! In: where the rings lie, what a record of this kind holds. Out: code that finds this CPU's ring or locks one
//! (`record::ring`), fills the slot behind its head, and publishes it. The steps are those of `programs::records`; this file
//! puts its parts together with what no program can do.
//!
//! The registers behind each step; what is saved lies where `saves` shows it:
//!
//! ```text
//!   step            r11     rax       r10       rdx      rcx
//!   find            ring    head      used      as was   as was
//!   lock            ring    head      used      used     as was     the ring is locked
//!   slot            ring    head      slot      as was   as was
//!   walk, copies    ring    head      slot      used     bytes of a record with a stack
//!   clock           ring    used      slot      time     the same
//!   words           ring    used      slot      used     the same   [r11 + HEAD] += length of the record
//! ```
//!
//! Without rseq, `lock` begins at ring 2 · CPU. `key` is S, or the address of the call's stamp cell ([`Placed`]).

use trapline_record::calls::WORD;
use trapline_record::ring::{
    FIRST_TEXT, FIRST_VALUE, HEAD, LOCKED, RecordKind, RingArea, TAIL, TRIES, first_float,
};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg};
use super::filter::ARGUMENTS;
use super::machine::Machine;
use super::record_parts::{Ids, RecordInputs};
use super::rseq;
use super::stack::Walk;
use super::text::{PageNotes, Texts};
use super::wait::Waits;
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
    /// How a thread's number is read. If that takes a system call, only records of entries hold the number,
    /// and records of stacks do not.
    pub id: ThreadId,
    /// Where stacks end.
    pub stacks: Stacks,
    /// Where the notes lie about pages that texts may be loaded from; `None` if the kernel copies all texts.
    pub known: Option<PageNotes>,
    /// A thread that finds its compact ring full waits.
    pub waits: Option<Waits>,
}

/// How the records of a call are identified that has a stamp cell in private memory (`defer`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    /// Register with the cell's address. It is recorded in place of the stack pointer, which may change while
    /// a goroutine runs; the cell's address does not.
    pub(super) at: Reg,
    /// The thread's number is taken from the entry's record, since a goroutine may have moved to another
    /// thread.
    pub(super) names: bool,
}

/// How many bytes ahead lines are prefetched, so that a slot is in this CPU's cache when it is written.
const AHEAD: i32 = 1024;
/// The same distance in slots, if these are large.
const SLOTS_AHEAD: i32 = 4;
/// Number of a stack's lines that are prefetched; few stacks need more.
const STACK_LINES: i32 = 4;
const LINE: i32 = 64;

/// The way of one probe's records of one kind into their ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingWriter<'a> {
    pub(super) machine: &'a Machine,
    pub(super) rings: &'a Rings,
    pub(super) probe: u32,
    /// The probe's number is in a word that the stub has written (`shared_record`).
    pub(super) is_passed: bool,
    pub(super) kind: RecordKind,
    /// What was copied for the record.
    pub(super) texts: Texts<'a>,
    pub(super) floats: Floats,
    /// The function is Go's, and returns in Go's registers.
    pub(super) by_go: bool,
    /// The record holds a stack, and no values.
    pub(super) stack: bool,
    /// By how many bytes the stack pointer is below the program's, without the copies.
    pub(super) step: i32,
}

impl RingWriter<'_> {
    /// How a record gets its thread's number. Exits and stacks make no system call for it: an
    /// exit's entry did, and sums of stacks need no number.
    pub(super) const fn number(&self) -> ThreadId {
        match self.rings.id {
            ThreadId::Call if !matches!(self.kind, RecordKind::Entry) || self.stack => ThreadId::Unknown,
            id => id,
        }
    }
    /// Approximate number of lines of its slot that a record fills.
    fn lines(&self) -> i32 {
        let texts = self.texts.words();
        match texts {
            _ if self.stack => STACK_LINES,
            _ if texts != 0 => (FIRST_TEXT as i32 + texts) * 8 / LINE + 1,
            _ => 1,
        }
    }
    /// The inputs of the record's program. `placed`: how the records of a call with a stamp cell are identified.
    fn inputs(&self, placed: Option<Placed>) -> RecordInputs {
        let depth = self.texts.depth();
        let own = match self.is_passed {
            true => Ids::Passed(self.number()),
            false => Ids::Of(self.number(), self.probe),
        };
        let (key, ids) = match placed {
            Some(Placed { at, names: true }) => ((at, 0), Ids::Kept(at)),
            Some(Placed { at, .. }) => ((at, 0), own),
            None => ((RSP, depth + self.step), own),
        };
        let area = self.machine.rseq.map_or(0, |rseq| rseq.offset);
        let behind = Behind::default();
        let (rings, kind, by_go) = (self.rings.base, self.kind, self.by_go);
        RecordInputs { rings, area, kind, ids, key, depth, by_go, behind }
    }
    /// Writes a record, and publishes it. The registers are those behind `find` or `lock`.
    pub(super) fn write(&self, asm: &mut Asm<'_>, values: usize, walk: Option<Walk>) {
        let slot = self.rings.area.slot;
        self.slot(asm, 0);
        let ahead = AHEAD.max(SLOTS_AHEAD * slot as i32);
        (0..self.lines()).for_each(|line| asm.prefetchw(Mem::At(R10, ahead + line * LINE)));
        if let Some(walk) = walk {
            walk.fill(asm);
        }
        let values = if walk.is_some() { 0 } else { values };
        self.copies(asm, values);
        asm.clock(RDX);
        self.words(asm, values, None, Some(self.publish(slot, walk.is_some())));
    }
    /// Steps L1 to L3. Jumps if all rings were locked, or if one is `full`.
    ///
    /// ```text
    ///   out   r11 = a ring, now locked;  rax = its head h;  [r11 + HEAD] = h + LOCKED
    ///   uses  rdx = rings left to try;  r10;  flags
    /// ```
    pub(super) fn lock(&self, asm: &mut Asm<'_>, full: u32) -> (Fix, Fix) {
        let area = &self.rings.area;
        rseq::likely_cpu(asm, R11, self.machine);
        asm.imul_imm(R11, R11, 2 * area.stride() as i32, true);
        asm.mov_imm64(R10, self.rings.base);
        asm.alu(Alu::Add, R11, R10);
        asm.mov_imm32(RDX, TRIES);
        let again = asm.here();
        asm.load(RAX, Mem::At(R11, HEAD as i32));
        asm.test_imm32(RAX, LOCKED as u32);
        let taken = asm.jcc_later(Cond::NotEqual);
        asm.mov(R10, RAX);
        asm.alu_load(Alu::Sub, R10, Mem::At(R11, TAIL as i32));
        asm.alu_imm(Alu::Cmp, R10, full as i32, true);
        let full = asm.jcc_later(Cond::AboveEq);
        asm.lea(R10, Mem::At(RAX, LOCKED as i32));
        asm.cmpxchg(Mem::At(R11, HEAD as i32), R10);
        let locked = asm.jcc_later(Cond::Equal);
        asm.bind(taken);
        asm.alu_imm(Alu::Add, R11, area.stride() as i32, true);
        asm.alu_imm(Alu::Sub, RDX, 1, false);
        asm.jcc(Cond::NotEqual, again);
        let busy = asm.jmp_later();
        asm.bind(locked);
        (busy, full)
    }
    /// r11 = this CPU's ring, rax = its head. Jumps if the thread has no area, or if the ring is `full`.
    pub(super) fn find(&self, asm: &mut Asm<'_>, full: u32) -> (Fix, Fix) {
        let cpus = self.machine.lines.saturating_sub(1);
        let leave = self.inputs(None).append(asm, Part::find(&self.rings.area, cpus, full));
        let mut of = |outcome: u8| {
            let found = leave.iter().find(|(other, _)| *other == outcome);
            found.map_or_else(|| asm.jmp_later(), |(_, fix)| *fix)
        };
        (of(Part::NO_CPU), of(Part::NO_ROOM))
    }
    /// Makes the copied texts as long as they are, for a compact ring. Uses rax, rdx, r10 and r11.
    pub(super) fn pack(&self, asm: &mut Asm<'_>, behind: Behind) {
        if behind.texts.many > 0 {
            self.inputs(None).append(asm, Part::Packed(behind.texts));
        }
    }
    /// A compact ring: r11 = this CPU's, then a record in it, behind a context if `is_pair`. Jumps if the thread has no
    /// area; if the ring is full; and, without a pair, if another context is needed.
    pub(super) fn write_compact(&self, asm: &mut Asm<'_>, is_pair: bool, behind: Behind) -> [Option<Fix>; 3] {
        let (area, cpus) = (&self.rings.area, self.machine.lines.saturating_sub(1));
        let inputs =
            RecordInputs { ids: Ids::Compact(self.rings.id, self.probe), behind, ..self.inputs(None) };
        let mut leave = inputs.append(asm, Part::find_compact(area, cpus));
        asm.clock(RDX);
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
    /// r10 = the slot that is `ahead` of the head.
    pub(super) fn slot(&self, asm: &mut Asm<'_>, ahead: u32) {
        self.inputs(None).append(asm, Part::Slot { bytes: self.rings.area.bytes, ahead });
    }
    /// How a record of so many bytes is published.
    pub(super) const fn publish(&self, bytes: u32, is_long: bool) -> Publish {
        Publish { bytes, is_long, is_locked: self.machine.rseq.is_none() }
    }
    /// Fills the words of the record at r10, and publishes it if that is in a ring; rdx = time. Uses rax and rdx.
    pub(super) fn words(
        &self,
        asm: &mut Asm<'_>,
        values: usize,
        placed: Option<Placed>,
        publish: Option<Publish>,
    ) {
        let all = match self.kind {
            RecordKind::Entry => values.min(ARGUMENTS),
            RecordKind::Return => self.floats.results.general.into(),
            RecordKind::Tail => 0,
        };
        let values = all.min(self.rings.area.values()) as u8;
        self.inputs(placed).append(asm, Part::Words { values, publish });
    }
    /// Copies into the record at r10 what no program can: texts, fields and floats. Uses rdx.
    pub(super) fn copies(&self, asm: &mut Asm<'_>, values: usize) {
        let word = |n: u64| Mem::At(R10, n as i32 * 8);
        if self.kind == RecordKind::Return {
            let Results { general, vectors } = self.floats.results;
            let words = FIRST_VALUE + u64::from(general)..u64::from(self.rings.area.slot) / 8;
            (0..vectors).zip(words).for_each(|(vector, n)| asm.store_vector(word(n), vector));
        }
        let first = first_float(values.min(ARGUMENTS), self.texts.count() as usize);
        if self.texts.depth() > 0 {
            self.texts.fill(asm, first + u64::from(self.floats.arguments.count_ones()));
        }
        if self.kind == RecordKind::Entry && !self.stack {
            let vectors = (0..8u8).filter(|n| self.floats.arguments >> n & 1 == 1);
            for (vector, n) in vectors.zip(first..u64::from(self.rings.area.slot) / 8) {
                asm.store_vector(word(n), vector);
            }
        }
    }
}
