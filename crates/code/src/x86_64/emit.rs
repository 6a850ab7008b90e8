//! A program's code on x86-64.
//!
//! In: a program with locations (`needs`); how inputs are loaded ([`Inputs`]); the frame. Out: code that falls
//! through at outcome 0, and the jumps of all other outcomes.
//!
//! ```text
//!   rax, r11   variables, if the stub names no other registers (`registers`); the last free one is the way to memory
//!   rdx        of a division; then it is loaded again from the frame, if something reads it later
//!   words      variables that found no register
//!   spare      rax, and rdx or r11, during a claim, if they hold something
//!   flags      overwritten
//!   rax        the result, at outcome 0
//! ```
//!
//! Each instruction has two operands, and the first one is written. `to = left op right` is thus
//!
//! ```text
//!   mov to, left;  op to, right            in general
//!   lea to, [left + right]                 of sums, and of differences from a number
//!   op to, left                            right is in `to`, and the operands may change places
//!   neg to;  add to, left                  right is in `to`, of a subtraction
//! ```
//!
//! Invariants: CODE-1, CODE-4. Does not: choose locations.

use super::asm::{Alu, Asm, Cond, Fix, Mem, R10, R11, RAX, RDX, Reg, Shift};
use crate::allocate::{Allocated, Location};
use crate::compute::{Compare, Compute, Unary};
use crate::operand::{Operand, Place, Var, Walk};
use crate::program::{CLAIMED, Commit, Op};
use crate::walk::{BackEnd, walk};

mod operands;

use operands::{Source, condition, with_source};

/// How a program's inputs are read.
pub trait Inputs {
    /// The register that holds an input. The program's code reads it there, and does not write it.
    fn register(&self, nth: u16) -> Option<Reg>;
    /// Loads an input that is in no register. The code may use `to` and flags.
    fn load(&self, asm: &mut Asm<'_>, nth: u16, to: Reg);
    /// Begins an addition to a word of this CPU's line, whose last instruction is the store. Returns a jump that is taken if
    /// the thread has left that CPU, as input `nth` says; `None` if threads of other CPUs add there too. The code may use the
    /// scratch and flags.
    fn begin_add(&self, _asm: &mut Asm<'_>, _nth: u16, _scratch: Reg) -> Option<Fix> {
        None
    }
    /// Such an addition has ended.
    fn end_add(&self, _asm: &Asm<'_>) {}
}

/// The parts of a stub's frame that a program's code uses.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Words for variables.
    pub words: &'a [Mem],
    /// Where rdx is saved. It is loaded again behind each division, if something reads it later.
    pub rdx: Mem,
    /// Whether code behind the program reads rdx.
    pub rdx_is_read: bool,
    /// Words for what a claim overwrites.
    pub spare: [Mem; 2],
    /// Whether jumps lie within 32 bytes each ([`Asm::unbroken`]).
    pub unbroken: bool,
}

/// Appends a program's code. Returns the jumps of the other outcomes, each with its outcome's number.
pub fn emit(
    asm: &mut Asm<'_>,
    allocated: &Allocated,
    inputs: &impl Inputs,
    frame: Frame<'_>,
) -> Vec<(u8, Fix)> {
    let reloads = if frame.rdx_is_read { usize::MAX } else { reloads(allocated, inputs) };
    walk(allocated, &mut Emitter { asm, allocated, inputs, frame, reloads, at: 0, ways: 0 })
}

/// How many divisions may run before rdx is read for the last time. An operation runs for the last time where it stands
/// (CODE-2), or, within a walk, at the walk's last step: what stands before a division there runs again after it.
fn reloads(allocated: &Allocated, inputs: &impl Inputs) -> usize {
    if !allocated.divides() {
        return 0;
    }
    let program = allocated.program();
    let ops = program.ops();
    let in_rdx = |nth| inputs.register(nth) == Some(RDX);
    let is_read = |var: Var| matches!(allocated.location(var), Location::Input(nth) if in_rdx(nth));
    let reads = |op: &Op| matches!(*op, Op::Input { nth, .. } if in_rdx(nth)) || op.read().any(is_read);
    let last = match program.read_at_end().any(is_read) {
        true => ops.len(),
        false => ops.iter().rposition(reads).map_or(0, |at| program.runs_until(at)),
    };
    ops[..last].iter().filter(|op| op.divides()).count()
}

struct Emitter<'a, 'c, I> {
    asm: &'a mut Asm<'c>,
    allocated: &'a Allocated,
    inputs: &'a I,
    frame: Frame<'a>,
    /// Behind how many further divisions rdx is loaded again.
    reloads: usize,
    /// The operation, and how many ways to memory it has used.
    at: usize,
    ways: usize,
}

impl<I: Inputs> BackEnd for Emitter<'_, '_, I> {
    type Reg = Reg;
    type Fix = Fix;
    const RESULT: Reg = RAX;

    fn at(&mut self, at: usize) {
        (self.at, self.ways) = (at, 0);
    }
    fn way(&mut self) -> Reg {
        let swaps = self.allocated.program().ops().get(self.at).is_some_and(Op::swaps);
        let mut free = self.allocated.free(self.at).map(Reg).filter(|way| !(swaps && *way == RAX));
        let way = free.nth(self.ways);
        self.ways += 1;
        debug_assert!(way.is_some(), "no way to memory at {}: {}", self.at, self.allocated.program());
        way.unwrap_or(R11)
    }
    fn here(&self) -> u64 {
        self.asm.here()
    }
    fn bind(&mut self, fix: Fix) {
        self.asm.bind(fix);
    }
    fn jump(&mut self) -> Fix {
        self.asm.jmp_later()
    }
    fn branch(&mut self, when: Compare, left: Operand, right: Operand) -> Fix {
        let (mut from, with) = (self.source(left), self.source(right));
        if let (Source::Memory(_), Source::Memory(_)) | (Source::Number(_), _) = (from, with) {
            from = Source::Register(self.fetch(left));
        }
        self.jump_if(when, from, with)
    }
    fn input(&mut self, to: Reg, nth: u16) {
        match self.inputs.register(nth) {
            Some(register) => self.asm.mov(to, register),
            None => self.inputs.load(self.asm, nth, to),
        }
    }
    fn number(&mut self, to: Reg, value: u64) {
        self.asm.mov_imm64(to, value);
    }
    fn load(&mut self, to: Reg, from: Var) {
        self.put(to, from);
    }
    fn unary(&mut self, op: Unary, to: Reg, from: Var) {
        match (op, self.source(from)) {
            (Unary::Extend(width), Source::Register(from)) if width.bits < 64 => {
                return self.asm.extend(to, from, width.bits, width.signed);
            }
            (Unary::Bits, Source::Register(from)) if from != to => {
                // 0 has no highest bit: then `bsr` leaves `to` as it is, which Linux relies on too (`fls64`,
                // arch/x86/include/asm/bitops.h).
                self.asm.mov_imm32(to, u32::MAX);
                self.asm.bsr(to, from);
                return self.asm.alu_imm(Alu::Add, to, 1, false);
            }
            _ => self.put(to, from),
        }
        match op {
            Unary::Negate => self.asm.negate(to),
            Unary::Complement => self.asm.not(to),
            Unary::Bits => {
                let zero = self.asm.unbroken(|asm| {
                    asm.test(to, to, true);
                    asm.jcc_later(Cond::Equal)
                });
                self.asm.bsr(to, to);
                self.asm.alu_imm(Alu::Add, to, 1, false);
                self.asm.bind(zero);
            }
            Unary::Extend(width) if width.bits < 64 => self.asm.extend(to, to, width.bits, width.signed),
            Unary::Extend(_) => {}
        }
    }
    fn compute(&mut self, op: Compute, to: Reg, left: Operand, right: Operand) {
        if op.divides() {
            return self.divide(op, to, (left, right));
        }
        let (from, with) = (self.source(left), self.source(right));
        let in_place = |source| matches!(source, Source::Register(reg) if reg == to);
        let (left, with) = match in_place(with) && !in_place(from) {
            true if op.commutes() => (right, from),
            // Only a subtraction has its right operand in a register, and does not commute.
            true => {
                self.asm.negate(to);
                return with_source(self.asm, Compute::Add, to, from);
            }
            false => (left, with),
        };
        let from = self.source(left);
        match (op, from, with) {
            (Compute::Multiply, Source::Register(from), Source::Number(number)) => {
                return self.asm.imul_imm(to, from, number, true);
            }
            (Compute::Add, Source::Register(from), Source::Number(number)) if from != to => {
                return self.asm.lea(to, Mem::At(from, number));
            }
            (Compute::Subtract, Source::Register(from), Source::Number(number))
                if from != to && number != i32::MIN =>
            {
                return self.asm.lea(to, Mem::At(from, -number));
            }
            (Compute::Add, Source::Register(from), Source::Register(with)) if from != to => {
                return self.asm.lea(to, Mem::Sum(from, with, 0, 0));
            }
            _ => {}
        }
        self.put(to, left);
        with_source(self.asm, op, to, with);
    }
    fn compute_word(&mut self, op: Compute, to: Reg, left: Operand, place: Place) -> bool {
        let (left_is, base) = (self.source(left), self.source(place.base));
        let (Source::Register(base), None) = (base, place.index) else { return false };
        let is_there = matches!(left_is, Source::Register(left) if left == to);
        if op.shifts() || op.divides() || base == to && !is_there {
            return false;
        }
        self.put(to, left);
        with_source(self.asm, op, to, Source::Memory(Mem::At(base, place.offset)));
        true
    }
    fn store(&mut self, word: u8, from: Reg) {
        self.asm.store(self.frame.words[usize::from(word)], from);
    }
    fn address(&mut self, to: Reg, place: Place) {
        match place.index {
            Some((index, shift @ 4..)) => {
                let base = self.fetch(place.base);
                let shifted = if to == base { self.way() } else { to };
                self.put(shifted, index);
                self.asm.shift(Shift::Left, shifted, shift & 63, true);
                self.asm.lea(to, Mem::Sum(base, shifted, 0, place.offset));
            }
            None if place.offset == 0 => self.put(to, place.base),
            _ => {
                let mem = self.mem(place);
                self.asm.lea(to, mem);
            }
        }
    }
    fn load_from(&mut self, to: Reg, place: Place, byte: bool) {
        let mem = self.mem(place);
        if byte { self.asm.load_byte(to, mem) } else { self.asm.load(to, mem) }
    }
    fn store_to(&mut self, place: Place, from: Operand) {
        let mem = self.mem(place);
        match self.source(from) {
            Source::Number(number) => self.asm.store_imm(mem, number),
            _ => {
                let from = self.fetch(from);
                self.asm.store(mem, from);
            }
        }
    }
    fn store_byte(&mut self, place: Place, value: u8) {
        let mem = self.mem(place);
        self.asm.store_byte_imm(mem, value);
    }
    fn branch_word(&mut self, when: Compare, place: Place, right: Operand) -> Fix {
        let mem = self.mem(place);
        let right = match self.source(right) {
            Source::Memory(_) => Source::Register(self.fetch(right)),
            source => source,
        };
        self.jump_if(when, Source::Memory(mem), right)
    }
    fn look(&mut self, place: Place) -> [Fix; 2] {
        let mem = self.mem(place);
        self.asm.cmp_mem_imm(mem, 0);
        [self.asm.jcc_later(Cond::Equal), self.asm.jcc_later(Cond::Sign)]
    }
    fn watch(&mut self, to: Reg, place: Place, _last: bool) {
        // Loads are done in their order.
        self.load_from(to, place, false);
    }
    /// Compares with rax. What that and the register of the new value hold waits in memory, for moves keep flags.
    fn claim(&mut self, place: Place, from: Operand) -> Fix {
        let base = self.fetch(place.base);
        let is_read =
            |reg: Reg| reg == base || matches!(self.source(from), Source::Register(from) if from == reg);
        let new = [RDX, R11, R10].into_iter().find(|reg| !is_read(*reg)).unwrap_or(R10);
        let is_free = |reg: Reg| self.allocated.free(self.at).any(|free| Reg(free) == reg);
        let kept = [RAX, new].map(|reg| !is_free(reg));
        let words = [RAX, new].into_iter().zip(self.frame.spare).zip(kept).filter(|(_, kept)| *kept);
        words.clone().for_each(|((reg, word), _)| self.asm.store(word, reg));
        self.asm.mov_imm64(new, CLAIMED);
        match from {
            Operand::Number(0) => self.asm.mov_imm32(RAX, 0),
            _ => {
                self.put(RAX, from);
                self.asm.alu(Alu::Or, new, RAX);
            }
        }
        self.asm.cmpxchg(Mem::At(base, place.offset), new);
        words.for_each(|((reg, word), _)| self.asm.load(reg, word));
        self.asm.jcc_later(Cond::Equal)
    }
    fn publish(&mut self, place: Place, value: Operand) {
        // Stores are seen in their order.
        self.store_to(place, value);
    }
    fn add(&mut self, place: Place, value: Operand) {
        self.add_to(place, value, true);
    }
    fn add_here(&mut self, place: Place, value: Operand, nth: u16) -> Option<Fix> {
        let scratch = self.way();
        let moved = self.inputs.begin_add(self.asm, nth, scratch);
        self.ways = 0;
        self.add_to(place, value, moved.is_none());
        self.inputs.end_add(self.asm);
        moved
    }
    /// Compares with rax, whose content waits in memory.
    fn raise(&mut self, when: Compare, place: Place, value: Operand) {
        let (base, value) = (self.fetch(place.base), self.fetch(value));
        let (word, kept) = (Mem::At(base, place.offset), self.frame.spare[0]);
        let is_free = self.allocated.free(self.at).any(|free| Reg(free) == RAX);
        if !is_free {
            self.asm.store(kept, RAX);
        }
        self.asm.load(RAX, word);
        let again = self.asm.here();
        self.asm.alu(Alu::Cmp, value, RAX);
        let change = self.asm.jcc_later(condition(when));
        let done = self.asm.jmp_later();
        self.asm.bind(change);
        self.asm.cmpxchg(word, value);
        self.asm.jcc(Cond::NotEqual, again);
        self.asm.bind(done);
        if !is_free {
            self.asm.load(RAX, kept);
        }
    }
    fn next(&mut self, walk: Walk, begin: u64) {
        let word = self.source(walk.entry);
        let entry = self.fetch(walk.entry);
        self.asm.lea(entry, Mem::At(entry, walk.stride.into()));
        if let Source::Memory(word) = word {
            self.asm.store(word, entry);
        }
        match self.source(walk.end) {
            Source::Memory(end) => self.asm.alu_load(Alu::Cmp, entry, end),
            Source::Register(end) => self.asm.alu(Alu::Cmp, entry, end),
            // A walk's end is no number.
            Source::Number(_) => {}
        }
        self.asm.jcc(Cond::NotEqual, begin);
    }
    fn commit(&mut self, commit: Commit, _ordered: bool) {
        self.add_to(commit.place, commit.value, false);
    }
}
