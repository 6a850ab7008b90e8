//! How a record gets into a ring: which ring, which slot, and the record's words.
//!
//! In: where the rings lie, what a record of this kind holds. Out: code that finds this CPU's ring or locks
//! one (`record::ring`), fills the slot behind its head, and commits it by storing the head.
//!
//! The registers behind each step; what is saved lies where `saves` shows it:
//!
//! ```text
//!   step            r11     rax       r10               rdx
//!   clock           free    used      as it was         time
//!   find            ring    head      bytes in use      as it was
//!   slot            ring    head      slot              time           = clock, find, behind
//!   lock            ring    head      used              used           the ring is locked
//!   fill, put       ring    head      slot, record      used
//!   the commit      [r11 + HEAD] = head + bytes of the record, as whole slots
//! ```
//!
//! ```text
//!   ring  = base + stride · CPU            with rseq; without, lock begins at ring 2 · CPU
//!   used  = head - [ring + TAIL]           the ring is full if used >= full
//!   slot  = ring + SLOTS + head mod (bytes of a ring)
//! ```
//!
//! A record, from r10 on. `key` is S, or the address of the call's stamp cell ([`Placed`]):
//!
//! ```text
//!   r10 + 0                  thread << 32 | probe
//!   r10 + 8                  time
//!   r10 + 16                 key + kind
//!   r10 + 8 · FIRST_VALUE    values: arguments, or the returned value; then texts, floats, fields; or a stack
//! ```

use trapline_record::ring::{
    FIRST_TEXT, FIRST_VALUE, HEAD, LOCKED, RecordKind, RingArea, SLOTS, TAIL, TRIES, first_float,
};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, RSP, Reg, Shift};
use super::filter::{ARGUMENT, ARGUMENTS};
use super::machine::Machine;
use super::rseq::{self, CPU_ID};
use super::saves::{SAVED_RAX, SAVED_RDX};
use super::stack::Walk;
use super::text::{PageNotes, Texts};
use super::threads;
use crate::machine::{Rseq, Stacks, ThreadId};
use crate::request::Floats;

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
    pub(super) kind: RecordKind,
    /// What was copied for the record.
    pub(super) texts: Texts<'a>,
    pub(super) floats: Floats,
    /// The record holds a stack, and no values.
    pub(super) stack: bool,
    /// By how many bytes the stack pointer is below the program's, without the copies.
    pub(super) step: i32,
}

impl RingWriter<'_> {
    /// How a record gets its thread's number. Exits and stacks make no system call for it: an
    /// exit's entry did, and sums of stacks need no number.
    pub(super) fn number(&self) -> ThreadId {
        match self.rings.id {
            ThreadId::Call if self.kind != RecordKind::Entry || self.stack => ThreadId::Unknown,
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
    /// Writes a record, and commits it by a store. The registers are those behind `slot`.
    pub(super) fn write(&self, asm: &mut Asm<'_>, values: usize, walk: Option<Walk>) {
        self.fill(asm, if walk.is_some() { 0 } else { values });
        let slot = self.rings.area.slot as i32;
        match walk {
            Some(walk) => {
                walk.fill(asm);
                // As many whole slots as the record fills.
                asm.alu_imm(Alu::Add, RDX, slot - 1, false);
                asm.alu_imm(Alu::And, RDX, -slot, false);
                asm.alu(Alu::Add, RAX, RDX);
            }
            None => asm.lea(RAX, Mem::At(RAX, slot)),
        }
        asm.store(Mem::At(R11, HEAD as i32), RAX);
    }
    /// Steps L1 to L3. Jumps if all rings were locked, or if one is `full`.
    ///
    /// ```text
    ///   out   r11 = a ring, now locked;  rax = its head h;  [r11 + HEAD] = h + LOCKED
    ///   uses  rdx = rings left to try;  r10;  flags
    /// ```
    pub(super) fn lock(&self, asm: &mut Asm<'_>, full: u32) -> (Fix, Fix, Fix) {
        let area = &self.rings.area;
        rseq::likely_cpu(asm, R11, self.machine);
        asm.imul_imm(R11, R11, 2 * area.stride() as i32, true);
        let ring = asm.alu_load_later(Alu::Add, R11);
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
        (ring, busy, full)
    }
    /// r10 = the slot behind the head in r10; r11 = ring.
    pub(super) fn behind(&self, asm: &mut Asm<'_>) {
        asm.alu_imm(Alu::And, R10, self.rings.area.bytes as i32 - 1, false);
        asm.lea(R10, Mem::Sum(R11, R10, 0, SLOTS as i32));
    }
    /// r11 = this CPU's ring, rax = its head, r10 = the slot behind it, rdx = time. Jumps as `find` does.
    pub(super) fn slot(&self, asm: &mut Asm<'_>, rseq: Rseq) -> (Fix, Fix, Fix) {
        asm.clock(RDX);
        let fixes = self.find(asm, rseq, self.rings.area.full());
        asm.mov(R10, RAX);
        self.behind(asm);
        fixes
    }
    /// r11 = this CPU's ring, rax = its head. Jumps if the thread has no area, or if the ring is `full`.
    /// Uses r10 and flags.
    pub(super) fn find(&self, asm: &mut Asm<'_>, rseq: Rseq, full: u32) -> (Fix, Fix, Fix) {
        let area = &self.rings.area;
        asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
        let unregistered = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, R11, self.machine.lines as i32 - 1, false);
            asm.jcc_later(Cond::AboveEq)
        });
        asm.imul_imm(R11, R11, area.stride() as i32, true);
        let ring = asm.alu_load_later(Alu::Add, R11);
        asm.load(RAX, Mem::At(R11, HEAD as i32));
        asm.mov(R10, RAX);
        asm.alu_load(Alu::Sub, R10, Mem::At(R11, TAIL as i32));
        let full = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, R10, full as i32, true);
            asm.jcc_later(Cond::AboveEq)
        });
        (ring, unregistered, full)
    }
    /// The registers are those behind `slot`. Uses rdx.
    fn fill(&self, asm: &mut Asm<'_>, values: usize) {
        let ahead = AHEAD.max(SLOTS_AHEAD * self.rings.area.slot as i32);
        (0..self.lines()).for_each(|line| asm.prefetchw(Mem::At(R10, ahead + line * LINE)));
        self.put(asm, values, None);
    }
    /// Writes the words of a record: r10 = its address, rdx = time. Uses rdx.
    pub(super) fn put(&self, asm: &mut Asm<'_>, values: usize, placed: Option<Placed>) {
        let (kind, depth) = (self.kind, self.texts.depth());
        let word = |n: u64| Mem::At(R10, n as i32 * 8);
        asm.store(word(1), RDX);
        match (placed.filter(|placed| placed.names), self.number()) {
            (Some(placed), _) => asm.load(RDX, Mem::At(placed.at, 0)),
            (None, ThreadId::Unknown) => asm.mov_imm32(RDX, self.probe),
            (None, id) => {
                threads::load(id, asm, RDX, depth);
                asm.shift(Shift::Left, RDX, 32, true);
                asm.alu_imm(Alu::Or, RDX, self.probe as i32, true);
            }
        }
        asm.store(word(0), RDX);
        let key = placed.map_or((RSP, depth + self.step), |placed| (placed.at, 0));
        asm.lea(RDX, Mem::At(key.0, key.1 + kind as i32));
        asm.store(word(2), RDX);
        let all: &[Reg] = match kind {
            RecordKind::Entry => &ARGUMENT[..values.min(ARGUMENTS)],
            RecordKind::Return if self.floats.returned => {
                asm.store_vector(word(FIRST_VALUE), 0);
                &[]
            }
            RecordKind::Return => &[RAX],
            RecordKind::Tail => &[],
        };
        for (&reg, n) in all.iter().take(self.rings.area.values()).zip(FIRST_VALUE..) {
            let saved = [(RAX, SAVED_RAX), (RDX, SAVED_RDX)].into_iter().find(|(other, _)| *other == reg);
            let from = saved.map_or(reg, |(_, at)| {
                asm.load(RDX, Mem::At(RSP, depth + at));
                RDX
            });
            asm.store(word(n), from);
        }
        let first = first_float(values.min(ARGUMENTS), self.texts.count() as usize);
        if depth > 0 {
            self.texts.fill(asm, first + u64::from(self.floats.arguments.count_ones()));
        }
        if kind == RecordKind::Entry && !self.stack {
            let vectors = (0..8u8).filter(|n| self.floats.arguments >> n & 1 == 1);
            for (vector, n) in vectors.zip(first..u64::from(self.rings.area.slot) / 8) {
                asm.store_vector(word(n), vector);
            }
        }
    }
}
