//! A program's code on arm64.
//!
//! In: a program with locations (`needs`); how inputs are loaded ([`Inputs`]); the frame. Out: code that falls
//! through at outcome 0, and the branches of all other outcomes.
//!
//! ```text
//!   x16, x17   variables, if the stub names no other registers (`registers`); the free ones are ways to memory, too
//!   x11        numbers; the first way from memory and to it
//!   words      variables that found no register: [sp + words + 8 · number]
//!   flags      overwritten
//!   x16        the result, at outcome 0
//! ```
//!
//! Invariants: CODE-1, CODE-4. Does not: choose locations.

use super::access::{is_byte_reach, is_reach, is_zero};
use super::asm::{Asm, Cond, Fix, Reg, SP, Update, ZERO};
use crate::allocate::{Allocated, Location};
use crate::compute::{Compare, Compute, Unary, Width};
use crate::operand::{Operand, Place, Var, Walk};
use crate::program::Commit;
use crate::walk::{BackEnd, walk};

mod operands;

use operands::{any_number, by_number, condition};

/// Variables, and the result.
pub(super) const A: Reg = 16;
/// Numbers, and the first way to memory.
pub(super) const C: Reg = 11;

/// How a program's inputs are read.
pub trait Inputs {
    /// The register that holds an input. The program's code reads it there, and does not write it.
    fn register(&self, nth: u16) -> Option<Reg>;
    /// Loads an input that is in no register. The code may use `to` and x11.
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg);
    /// Begins an addition to a word of this CPU's line, whose last instruction is the store. Returns a jump that is taken if
    /// the thread has left that CPU, as input `nth` says; `None` if threads of other CPUs add there too. The code may use the
    /// scratch and flags.
    fn begin_add(&self, _asm: &mut Asm, _nth: u16, _scratch: [Reg; 2]) -> Option<Fix> {
        None
    }
    /// Such an addition has ended.
    fn end_add(&self, _asm: &Asm) {}
}

/// The parts of a stub's frame that a program's code uses.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Offset of the words for variables from the stack pointer.
    pub words: u32,
    /// Whether the processor adds to memory by one instruction (FEAT_LSE).
    pub lse: bool,
}

/// Appends a program's code. Returns the branches of the other outcomes, each with its outcome's number.
pub fn emit(asm: &mut Asm, allocated: &Allocated, inputs: &impl Inputs, frame: Frame) -> Vec<(u8, Fix)> {
    walk(allocated, &mut Emitter { asm, allocated, inputs, frame, at: 0, ways: 0 })
}

struct Emitter<'a, I> {
    asm: &'a mut Asm,
    allocated: &'a Allocated,
    inputs: &'a I,
    frame: Frame,
    /// The operation, and how many ways to memory it has used.
    at: usize,
    ways: usize,
}

impl<I: Inputs> BackEnd for Emitter<'_, I> {
    type Reg = Reg;
    type Fix = Fix;
    const RESULT: Reg = A;

    fn at(&mut self, at: usize) {
        (self.at, self.ways) = (at, 0);
    }
    fn way(&mut self) -> Reg {
        let is_end = self.at == self.allocated.program().ops().len();
        let free = self.allocated.free(self.at).map(Reg::from);
        // A commit leaves C as it is, if it can.
        let [first, last] = if is_end { [None, Some(C)] } else { [Some(C), None] };
        let way = first.into_iter().chain(free).chain(last).nth(self.ways);
        self.ways += 1;
        debug_assert!(way.is_some(), "no way to memory at {}: {}", self.at, self.allocated.program());
        way.unwrap_or(C)
    }
    fn here(&self) -> u64 {
        self.asm.here()
    }
    fn bind(&mut self, fix: Fix) {
        self.asm.bind(fix);
    }
    fn jump(&mut self) -> Fix {
        self.asm.b_later()
    }
    fn branch(&mut self, when: Compare, left: Operand, right: Operand) -> Fix {
        let from = self.fetch(left);
        self.jump_if(when, from, right)
    }
    fn input(&mut self, to: Reg, nth: u16) {
        match self.inputs.register(nth) {
            Some(register) => self.asm.mov(to, register),
            None => self.inputs.load(self.asm, nth, to),
        }
    }
    fn number(&mut self, to: Reg, value: u64) {
        any_number(self.asm, to, value);
    }
    fn load(&mut self, to: Reg, from: Var) {
        let from = self.fetch_into(from, to);
        if from != to {
            self.asm.mov(to, from);
        }
    }
    fn unary(&mut self, op: Unary, to: Reg, from: Var) {
        let from = self.fetch_into(from, to);
        match op {
            Unary::Negate => self.asm.negate(to, from),
            Unary::Complement => self.asm.not(to, from),
            Unary::Bits => {
                self.asm.leading_zeros(to, from);
                self.asm.add_imm(to, to, -64);
                self.asm.negate(to, to);
            }
            Unary::Extend(Width { bits: 64.., .. }) if to == from => {}
            Unary::Extend(Width { bits: 64.., .. }) => self.asm.mov(to, from),
            Unary::Extend(Width { bits, signed: true }) => self.asm.signed_bits(to, from, bits.into()),
            Unary::Extend(Width { bits, signed: false }) => self.asm.bits(to, from, 0, bits.into()),
        }
    }
    fn compute(&mut self, op: Compute, to: Reg, left: Operand, right: Operand) {
        // What is on the way to a word is written last, so it may be on the way from one before.
        self.ways = 0;
        let from = self.fetch(left);
        if let Operand::Number(number) = right
            && by_number(self.asm, op, (to, from), number)
        {
            return;
        }
        let with = self.fetch(right);
        match op {
            Compute::Add => self.asm.add(to, from, with),
            Compute::Subtract => self.asm.sub(to, from, with),
            Compute::Multiply => self.asm.multiply(to, from, with),
            Compute::And => self.asm.and(to, from, with),
            Compute::Or => self.asm.or(to, from, with),
            Compute::Xor => self.asm.xor(to, from, with),
            Compute::Divide => self.asm.div(to, from, with),
            Compute::DivideSigned => self.asm.divide_signed(to, from, with),
            Compute::Remainder | Compute::RemainderSigned => {
                let quotient = if [from, with].contains(&to) { self.way() } else { to };
                match op {
                    Compute::Remainder => self.asm.div(quotient, from, with),
                    _ => self.asm.divide_signed(quotient, from, with),
                }
                self.asm.mul_sub(to, quotient, with, from);
            }
            // Their right operand is a number (`verify`).
            Compute::ShiftLeft | Compute::ShiftRight | Compute::ShiftSigned => {}
        }
    }
    fn store(&mut self, word: u8, from: Reg) {
        self.asm.store(from, SP, self.word(word));
    }
    fn multiply_add(&mut self, to: Reg, (left, right): (Operand, Operand), plus: Operand) -> bool {
        let (Some(left), Some(plus)) = (self.register(left), self.register(plus)) else { return false };
        let right = match right {
            Operand::Number(_) => self.fetch(right),
            Operand::Var(_) => match self.register(right) {
                Some(right) => right,
                None => return false,
            },
        };
        self.asm.mul_add(to, left, right, plus);
        true
    }
    fn address(&mut self, to: Reg, place: Place) {
        self.ways = 0;
        let base = self.fetch(place.base);
        let base = match place.index {
            Some((index, shift)) => {
                let index = self.fetch(index);
                self.asm.add_shifted(to, base, index, u32::from(shift) & 63);
                to
            }
            None => base,
        };
        match place.offset {
            0 if base == to => {}
            0 => self.asm.mov(to, base),
            offset => self.asm.add_imm(to, base, offset),
        }
    }
    fn load_from(&mut self, to: Reg, place: Place, byte: bool) {
        self.ways = 0;
        let (base, at) = self.reach(place, if byte { is_byte_reach } else { is_reach });
        if byte { self.asm.load_byte_at(to, base, at) } else { self.asm.load_word(to, base, at) }
    }
    fn store_to(&mut self, place: Place, from: Operand) {
        let (base, at) = self.reach(place, is_reach);
        let from = match from {
            Operand::Number(0) => ZERO,
            _ => self.fetch(from),
        };
        self.asm.store_word(from, base, at);
    }
    fn store_two(&mut self, place: Place, from: [Operand; 2]) -> bool {
        let from = from.map(|from| if from == Operand::Number(0) { Some(ZERO) } else { self.register(from) });
        let ([Some(one), Some(other)], Some(base)) = (from, self.register(place.base.into())) else {
            return false;
        };
        if place.index.is_some() || !(0..512).contains(&place.offset) || place.offset % 8 != 0 {
            return false;
        }
        self.asm.store_two(one, other, base, place.offset as u32);
        true
    }
    fn store_byte(&mut self, place: Place, value: u8) {
        let (base, at) = self.reach(place, is_byte_reach);
        let from = match value {
            0 => ZERO,
            _ => self.fetch(Operand::Number(value.into())),
        };
        self.asm.store_byte_at(from, base, at);
    }
    fn branch_word(&mut self, when: Compare, place: Place, right: Operand) -> Fix {
        let (base, at) = self.reach(place, is_reach);
        // The word may overwrite its address, if that is on the way.
        self.ways = self.ways.max(1);
        self.asm.load_word(C, base, at);
        self.jump_if(when, C, right)
    }
    fn look(&mut self, place: Place) -> [Fix; 2] {
        let (base, _) = self.reach(place, is_zero);
        self.asm.load_acquire(C, base);
        [self.asm.if_zero_later(C), self.asm.if_sign_later(C)]
    }
    fn watch(&mut self, to: Reg, place: Place, last: bool) {
        let (base, _) = self.reach(place, is_zero);
        if last {
            self.asm.order_loads();
        }
        self.asm.load_acquire(to, base);
    }
    fn claim(&mut self, place: Place, from: Operand) -> Fix {
        let (base, _) = self.reach(place, is_zero);
        let from = if from == Operand::Number(0) { ZERO } else { self.fetch(from) };
        let [word, claimed] = [self.way(), self.way()];
        self.asm.highest_bit(claimed);
        if from != ZERO {
            self.asm.or(claimed, claimed, from);
        }
        let again = self.asm.here();
        self.asm.load_exclusive(word, base);
        self.asm.compare(word, from);
        let gone = self.asm.if_later(Cond::NotEqual);
        self.asm.store_exclusive(word, claimed, base);
        self.asm.unless_zero(word, again);
        self.asm.order_stores();
        let is_claimed = self.asm.b_later();
        self.asm.bind(gone);
        is_claimed
    }
    fn publish(&mut self, place: Place, value: Operand) {
        let (base, _) = self.reach(place, is_zero);
        let value = match value {
            Operand::Number(0) => ZERO,
            _ => self.fetch(value),
        };
        self.asm.store_release(value, base);
    }
    fn add(&mut self, place: Place, value: Operand) {
        let (base, _) = self.reach(place, is_zero);
        if let (Operand::Number(number), false) = (value, self.frame.lse)
            && Commit::holds(number.into())
        {
            let [sum, failed] = [self.way(), self.way()];
            let again = self.asm.here();
            self.asm.load_exclusive(sum, base);
            self.asm.add_imm(sum, sum, number);
            self.asm.store_exclusive(failed, sum, base);
            return self.asm.unless_zero(failed, again);
        }
        let value = self.fetch(value);
        let scratch = if self.frame.lse { [value; 2] } else { [self.way(), self.way()] };
        self.asm.update(self.frame.lse, Update::Add, value, base, scratch);
    }
    fn add_here(&mut self, place: Place, value: Operand, nth: u16) -> Option<Fix> {
        let scratch = [self.way(), self.way()];
        let moved = self.inputs.begin_add(self.asm, nth, scratch);
        self.ways = 0;
        match moved {
            Some(_) => self.add_alone(Commit { place, value }, false),
            None => self.add(place, value),
        }
        self.inputs.end_add(self.asm);
        moved
    }
    fn raise(&mut self, when: Compare, place: Place, value: Operand) {
        let (base, _) = self.reach(place, is_zero);
        let value = self.fetch(value);
        let [word, failed] = [self.way(), self.way()];
        let again = self.asm.here();
        self.asm.load_exclusive(word, base);
        self.asm.compare(value, word);
        let change = self.asm.if_later(condition(when));
        let done = self.asm.b_later();
        self.asm.bind(change);
        self.asm.store_exclusive(failed, value, base);
        self.asm.unless_zero(failed, again);
        self.asm.bind(done);
    }
    fn next(&mut self, walk: Walk, begin: u64) {
        let entry = self.fetch(walk.entry);
        self.asm.add_imm(entry, entry, walk.stride.into());
        if let Location::Word(word) = self.allocated.location(walk.entry) {
            self.asm.store(entry, SP, self.word(word));
        }
        let end = self.fetch(walk.end);
        self.asm.compare(entry, end);
        self.asm.if_to(Cond::NotEqual, begin);
    }
    fn commit(&mut self, commit: Commit, ordered: bool) {
        self.add_alone(commit, ordered);
    }
}
