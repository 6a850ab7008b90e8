//! How a record gets into a ring: which ring, which slot, and the record's words.
//!
//! In: where the rings lie, what a record of this kind holds. Out: code that finds this CPU's ring or locks
//! one (`record::ring`), fills the slot behind its head, and commits it by storing the head.
//!
//! ```text
//!   ring = base + stride·cpu                           `find`
//!   ring = base + 2·stride·n, + stride at each try     `lock`; n = by_thread(lines - 1), below the number of CPUs
//!   room: head - [ring + TAIL] < full
//!   slot = ring + SLOTS + head mod bytes
//!
//!           x16 A     x17 B          x14 RING   x15 AT           x13 SLOT       x12 TIME     x11 C
//!   find    scratch   the area       ring       [ring + HEAD]    -              -            scratch
//!   lock    scratch   store failed   ring       its head         head + LOCKED  tries left   scratch
//!   write   scratch   scratch        ring       head             slot           the time     scratch
//!   end     -         -              ring       head + record    -              -            -
//!
//!   slot +  0   probe | number << 32, the time         number: of the thread; 0 unless ThreadId::At
//!   slot + 16   key + kind
//!   slot + 24   FIRST_VALUE: arguments, texts, floats, fields; or the value; or a stack (`stack`)
//! ```
//!
//! All of them use flags.
//!
//! Memory is ordered no more than necessary. The head is stored with release, so that a reader that sees it
//! sees the slots. A lock is taken with acquire, so that what its last holder wrote comes before what we
//! publish with it. A slot's stores come behind the load of the tail, since a branch that depends on it lies
//! between them.

use trapline_record::ring::{
    FIRST_VALUE, HEAD, LOCKED, RecordKind, RingArea, SLOTS, TAIL, TRIES, first_float,
};

use super::asm::{Asm, Cond, Fix, Reg, SP};
use super::counted::by_thread;
use super::filter::ARGUMENTS;
use super::latency::{G, STACK_END};
use super::machine::Machine;
use super::rseq::CPU_ID;
use super::saves::{A, AT, B, C, RING, SLOT, TIME};
use super::stack::Walk;
use super::text::Texts;
use crate::machine::{Stacks, ThreadId};
use crate::request::Floats;

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

/// How records are identified: both records of a call have this key, and no other open call has it.
#[derive(Clone, Copy, Debug)]
pub(super) enum RecordKey {
    /// The stack pointer at the entry, which is this many bytes above the stack pointer.
    Stack(u32),
    /// The address to which the record is written.
    Itself,
    /// The address to which the entry's record was written. It is in the frame, at this offset from the stack
    /// pointer.
    Left(u32),
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
    /// The key is a goroutine's place ([`place`]).
    pub(super) goroutine: bool,
}

impl RingWriter<'_> {
    /// Finds this CPU's ring. Jumps if the thread has no area, or if the ring is `full`.
    pub(super) fn find(&self, asm: &mut Asm, full: u32) -> (Fix, Fix) {
        let area = &self.rings.area;
        asm.load32(A, B, CPU_ID);
        // The number is negative, or of a CPU that was not known when the plan was made.
        asm.number(C, self.machine.lines.saturating_sub(1));
        asm.compare(A, C);
        let unregistered = asm.if_later(Cond::AboveEq);
        asm.constant(C, area.stride());
        asm.constant(RING, self.rings.base);
        asm.mul_add(RING, A, C, RING);
        asm.load(AT, RING);
        let full = unless_room(asm, full);
        (unregistered, full)
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
    /// `SLOT = RING + SLOTS + AT mod bytes`
    pub(super) fn slot(&self, asm: &mut Asm) {
        asm.bits(SLOT, AT, 0, self.rings.area.bytes.trailing_zeros());
        asm.add(SLOT, RING, SLOT);
        asm.add_imm(SLOT, SLOT, SLOTS as i32);
    }
    /// Writes a record, and commits it by a store, as `find` or `lock` left `RING` and `AT`.
    pub(super) fn write(&self, asm: &mut Asm, values: usize, walk: Option<Walk>) {
        let slot = self.rings.area.slot;
        asm.clock(TIME);
        self.slot(asm);
        let key = RecordKey::Stack(self.texts.depth() + self.step);
        self.put(asm, if walk.is_some() { 0 } else { values }, key);
        match walk {
            Some(walk) => {
                walk.fill(asm);
                // As many whole slots as the record fills.
                asm.number(A, slot - 1);
                asm.add(C, C, A);
                asm.clear_low(C, C, slot.trailing_zeros());
                asm.add(AT, AT, C);
            }
            None => asm.add_imm(AT, AT, slot.cast_signed()),
        }
        const { assert!(HEAD == 0, "the head is stored through the ring's own address") };
        asm.store_release(AT, RING);
    }
    /// Writes the words of a record at `SLOT`, with `TIME`. Uses `A` and `C`.
    pub(super) fn put(&self, asm: &mut Asm, values: usize, key: RecordKey) {
        let (kind, texts) = (self.kind, self.texts);
        asm.number(A, self.probe);
        if let ThreadId::At(offset) = self.rings.id {
            asm.thread_pointer(C);
            asm.add_imm(C, C, offset);
            asm.load32(C, C, 0);
            asm.add_shifted(A, A, C, 32);
        }
        asm.store_two(A, TIME, SLOT, 0);
        match key {
            RecordKey::Stack(above) if self.goroutine => {
                asm.add_imm(A, SP, above as i32);
                place(asm);
                asm.add_imm(A, A, kind as i32);
            }
            RecordKey::Stack(above) => asm.add_imm(A, SP, above as i32 + kind as i32),
            RecordKey::Itself => {
                asm.mov(A, SLOT);
                asm.add_imm(A, A, kind as i32);
            }
            RecordKey::Left(at) => {
                asm.load_at(A, SP, at);
                asm.add_imm(A, A, kind as i32);
            }
        }
        asm.store(A, SLOT, 16);
        let all = match kind {
            RecordKind::Entry => values.min(ARGUMENTS),
            RecordKind::Return if self.floats.returned => {
                asm.store_vector(0, SLOT, FIRST_VALUE as u32 * 8);
                0
            }
            RecordKind::Return => 1,
            RecordKind::Tail => 0,
        };
        for (reg, word) in (0..all.min(self.rings.area.values()) as Reg).zip(FIRST_VALUE as u32..) {
            asm.store(reg, SLOT, word * 8);
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

/// From `A` = S to the number of a place on a goroutine's stack. It is the same wherever that stack is, and
/// different for any other place. The low 40 bits are g's, since Go's heap lies there. Deeper calls have
/// smaller numbers. Uses `C`.
///
/// ```text
///   A = ((S - [g + STACK_END]) << 36) + g     S if g = 0
/// ```
fn place(asm: &mut Asm) {
    let no_goroutine = asm.if_zero_later(G);
    asm.load_at(C, G, STACK_END);
    asm.sub(A, A, C);
    asm.shift_left_by(A, A, 36);
    asm.add(A, A, G);
    asm.bind(no_goroutine);
}
