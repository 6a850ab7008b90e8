//! A program's code on arm64.
//!
//! In: a program with locations ([`allocate`]); how inputs are loaded ([`Inputs`]); the frame. Out: code that falls
//! through at outcome 0, and the branches of all other outcomes.
//!
//! ```text
//!   x16, x17   variables; x17 is the way of right operands from memory if variables are there
//!   x11        numbers; the way of left operands from memory, and of results to it
//!   words      variables that found no register: [sp + words + 8 · number]
//!   flags      overwritten
//!   x16        the result, at outcome 0
//! ```
//!
//! Invariants: CODE-1, CODE-4. Does not: choose locations.

use super::asm::{Asm, Cond, Fix, Reg, SP};
use crate::allocate::{Allocated, Location, NoRoom, Pool};
use crate::program::{Compare, Compute, Op, Operand, Program, Unary, Var, Width};
use crate::walk::{BackEnd, walk};

/// Variables, and the result.
const A: Reg = 16;
/// Variables; the way of right operands.
const B: Reg = 17;
/// Numbers; the way of left operands and results.
const C: Reg = 11;

/// How a program's inputs are read.
pub trait Inputs {
    /// The register that holds an input. The program's code reads it there, and does not write it.
    fn register(&self, nth: u16) -> Option<Reg>;
    /// Loads an input that is in no register. The code may use `to`.
    fn load(&self, asm: &mut Asm, nth: u16, to: Reg);
}

/// The parts of a stub's frame that a program's code uses.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Offset of the words for variables from the stack pointer.
    pub words: u32,
}

/// Chooses locations for a program that has `words` stack words.
///
/// # Errors
/// There are too few.
pub fn allocate(program: Program, words: usize, inputs: &impl Inputs) -> Result<Allocated, NoRoom> {
    let registers = &[A as u8, B as u8];
    let pool = Pool { registers, divided: registers, words, result: A as u8 };
    Allocated::new(program, &pool, |nth| inputs.register(nth).is_some())
}

/// Upper bound of the code's bytes, with its constants.
///
/// `input`: upper bound of the bytes of [`Inputs::load`].
#[must_use]
pub fn most_bytes(program: &Program, input: usize) -> usize {
    const WORD: usize = 4;
    // A number takes two instructions, or one and a constant.
    const NUMBER: usize = 12;
    let most = |op: &Op| match op {
        Op::Input { .. } => input + WORD,
        Op::Number { .. } => NUMBER + WORD,
        Op::Move { .. } => 2 * WORD,
        Op::Unary { .. } => 5 * WORD,
        Op::Compute { .. } => NUMBER + 5 * WORD,
        Op::Branch { .. } => NUMBER + 4 * WORD,
        Op::Jump { .. } => WORD,
        Op::Bind { .. } => 0,
    };
    program.ops().iter().map(most).sum::<usize>() + WORD
}

/// Appends a program's code. Returns the branches of the other outcomes, each with its outcome's number.
pub fn emit(asm: &mut Asm, allocated: &Allocated, inputs: &impl Inputs, frame: Frame) -> Vec<(u8, Fix)> {
    walk(allocated, &mut Emitter { asm, allocated, inputs, frame })
}

struct Emitter<'a, I> {
    asm: &'a mut Asm,
    allocated: &'a Allocated,
    inputs: &'a I,
    frame: Frame,
}

impl<I: Inputs> BackEnd for Emitter<'_, I> {
    type Reg = Reg;
    type Fix = Fix;
    const WAY: Reg = C;
    const RESULT: Reg = A;

    fn bind(&mut self, fix: Fix) {
        self.asm.bind(fix);
    }
    fn jump(&mut self) -> Fix {
        self.asm.b_later()
    }
    fn branch(&mut self, when: Compare, left: Operand, right: Operand) -> Fix {
        let from = self.register(left, C);
        match (when, right) {
            (Compare::Equal, Operand::Number(0)) => return self.asm.if_zero_later(from),
            (Compare::NotEqual, Operand::Number(0)) => return self.asm.unless_zero_later(from),
            (Compare::Less, Operand::Number(0)) => return self.asm.if_sign_later(from),
            (Compare::GreaterEqual, Operand::Number(0)) => return self.asm.unless_sign_later(from),
            (_, Operand::Number(number)) if number.unsigned_abs() < 1 << 12 => {
                self.asm.compare_number(from, number);
            }
            _ => {
                let with = self.register(right, if from == C { B } else { C });
                self.asm.compare(from, with);
            }
        }
        self.asm.if_later(condition(when))
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
        let from = self.register(from, to);
        if from != to {
            self.asm.mov(to, from);
        }
    }
    fn unary(&mut self, op: Unary, to: Reg, from: Var) {
        let from = self.register(from, to);
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
        let from = self.register(left, C);
        if let Operand::Number(number) = right
            && by_number(self.asm, op, (to, from), number)
        {
            return;
        }
        let with = self.register(right, if from == C { B } else { C });
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
                // No variable in use across a division is in one of these.
                let quotient = [A, B, C].into_iter().find(|reg| ![from, with].contains(reg)).unwrap_or(C);
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
}

impl<I: Inputs> Emitter<'_, I> {
    fn word(&self, word: u8) -> u32 {
        self.frame.words + 8 * u32::from(word)
    }
    /// The register with an operand; one that is in memory, or a number, is loaded into `way`.
    fn register(&mut self, operand: impl Into<Operand>, way: Reg) -> Reg {
        let var = match operand.into() {
            Operand::Number(number) => {
                any_number(self.asm, way, i64::from(number).cast_unsigned());
                return way;
            }
            Operand::Var(var) => var,
        };
        match self.allocated.location(var) {
            Location::Register(register) => return register.into(),
            Location::Word(word) => self.asm.load_at(way, SP, self.word(word)),
            Location::Input(nth) => match self.inputs.register(nth) {
                Some(register) => return register,
                None => self.inputs.load(self.asm, nth, way),
            },
            Location::Nowhere => self.asm.number(way, 0),
        }
        way
    }
}

/// `to = from op number`, where an instruction holds the number. Returns whether one does.
fn by_number(asm: &mut Asm, op: Compute, (to, from): (Reg, Reg), number: i32) -> bool {
    let is_short = number.unsigned_abs() < 1 << 24 && number != 0;
    let by = number as u32 & 63;
    match op {
        Compute::Add if is_short => asm.add_imm(to, from, number),
        Compute::Subtract if is_short => asm.add_imm(to, from, -number),
        Compute::ShiftLeft => asm.shift_left_by(to, from, by),
        Compute::ShiftRight => asm.shift_right_by(to, from, by),
        Compute::ShiftSigned => asm.shift_signed_by(to, from, by),
        _ => return false,
    }
    true
}

/// `to` = a number, by at most two instructions, or by one and a constant.
fn any_number(asm: &mut Asm, to: Reg, value: u64) {
    match u32::try_from(value) {
        Ok(value) => asm.number(to, value),
        Err(_) => asm.constant(to, value),
    }
}

const fn condition(when: Compare) -> Cond {
    match when {
        Compare::Equal => Cond::Equal,
        Compare::NotEqual => Cond::NotEqual,
        Compare::Less => Cond::Less,
        Compare::LessEqual => Cond::LessEq,
        Compare::Greater => Cond::Greater,
        Compare::GreaterEqual => Cond::GreaterEq,
        Compare::Below => Cond::Below,
        Compare::BelowEqual => Cond::BelowEq,
        Compare::Above => Cond::Above,
        Compare::AboveEqual => Cond::AboveEq,
    }
}
