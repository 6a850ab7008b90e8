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
use crate::program::{Compare, Compute, Op, Operand, Program, Target, Unary, Width};

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
        Op::Unary { .. } => 3 * WORD,
        Op::Compute { .. } => NUMBER + 5 * WORD,
        Op::Branch { .. } => NUMBER + 4 * WORD,
        Op::Jump { .. } => WORD,
        Op::Bind { .. } => 0,
    };
    program.ops().iter().map(most).sum::<usize>() + WORD
}

/// Appends a program's code. Returns the branches of the other outcomes, each with its outcome's number.
pub fn emit(asm: &mut Asm, allocated: &Allocated, inputs: &impl Inputs, frame: Frame) -> Vec<(u8, Fix)> {
    let program = allocated.program();
    let mut emitter = Emitter { allocated, inputs, frame, open: Vec::new() };
    for (at, op) in program.ops.iter().enumerate() {
        emitter.op(asm, *op, program.ops.get(at + 1));
    }
    emitter.bind(asm, Target::Outcome(0));
    if let Some(result) = program.result {
        let from = emitter.register(asm, result.into(), A);
        if from != A {
            asm.mov(A, from);
        }
    }
    let outcome = |(to, fix)| match to {
        Target::Outcome(outcome) => Some((outcome, fix)),
        // All labels are bound (`verify`).
        Target::Label(_) => None,
    };
    emitter.open.into_iter().filter_map(outcome).collect()
}

struct Emitter<'a, I> {
    allocated: &'a Allocated,
    inputs: &'a I,
    frame: Frame,
    /// Branches that are not bound yet, and where they lead.
    open: Vec<(Target, Fix)>,
}

impl<I: Inputs> Emitter<'_, I> {
    fn word(&self, word: u8) -> u32 {
        self.frame.words + 8 * u32::from(word)
    }
    /// The register with an operand; one that is in memory, or a number, is loaded into `way`.
    fn register(&self, asm: &mut Asm, operand: Operand, way: Reg) -> Reg {
        let var = match operand {
            Operand::Number(number) => {
                any_number(asm, way, i64::from(number).cast_unsigned());
                return way;
            }
            Operand::Var(var) => var,
        };
        match self.allocated.location(var) {
            Location::Register(register) => return register.into(),
            Location::Word(word) => asm.load_at(way, SP, self.word(word)),
            Location::Input(nth) => match self.inputs.register(nth) {
                Some(register) => return register,
                None => self.inputs.load(asm, nth, way),
            },
            Location::Nowhere => asm.number(way, 0),
        }
        way
    }

    fn op(&mut self, asm: &mut Asm, op: Op, next: Option<&Op>) {
        match op {
            Op::Jump { to } if is_next(to, next) => {}
            Op::Jump { to } => {
                let fix = asm.b_later();
                self.open.push((to, fix));
            }
            Op::Branch { when, left, right, to } => {
                let fix = self.branch(asm, when, left.into(), right);
                self.open.push((to, fix));
            }
            Op::Bind { label } => self.bind(asm, Target::Label(label)),
            _ => self.write(asm, op),
        }
    }
    /// Makes all that lead there lead here.
    fn bind(&mut self, asm: &mut Asm, target: Target) {
        self.open.retain(|(to, fix)| {
            if *to == target {
                asm.bind(*fix);
            }
            *to != target
        });
    }
    /// An operation that writes a variable.
    fn write(&self, asm: &mut Asm, op: Op) {
        let Some(var) = op.written() else { return };
        let (to, memory) = match self.allocated.location(var) {
            Location::Register(register) => (Reg::from(register), None),
            Location::Word(word) => (C, Some(self.word(word))),
            Location::Input(_) | Location::Nowhere => return,
        };
        match op {
            Op::Input { nth, .. } => match self.inputs.register(nth) {
                Some(register) => asm.mov(to, register),
                None => self.inputs.load(asm, nth, to),
            },
            Op::Number { value, .. } => any_number(asm, to, value),
            Op::Move { from, .. } => {
                let from = self.register(asm, from.into(), to);
                if from != to {
                    asm.mov(to, from);
                }
            }
            Op::Unary { op, from, .. } => {
                let from = self.register(asm, from.into(), to);
                unary(asm, op, to, from);
            }
            Op::Compute { op, left, right, .. } => self.compute(asm, op, to, (left.into(), right)),
            Op::Branch { .. } | Op::Jump { .. } | Op::Bind { .. } => {}
        }
        if let Some(memory) = memory {
            asm.store(to, SP, memory);
        }
    }
    fn compute(&self, asm: &mut Asm, op: Compute, to: Reg, (left, right): (Operand, Operand)) {
        let from = self.register(asm, left, C);
        match (op, right) {
            (Compute::Add, Operand::Number(number)) if number.unsigned_abs() < 1 << 24 && number != 0 => {
                return asm.add_imm(to, from, number);
            }
            (Compute::Subtract, Operand::Number(number))
                if number.unsigned_abs() < 1 << 24 && number != 0 =>
            {
                return asm.add_imm(to, from, -number);
            }
            (Compute::ShiftLeft, Operand::Number(by)) => return asm.shift_left_by(to, from, by as u32 & 63),
            (Compute::ShiftRight, Operand::Number(by)) => {
                return asm.shift_right_by(to, from, by as u32 & 63);
            }
            (Compute::ShiftSigned, Operand::Number(by)) => {
                return asm.shift_signed_by(to, from, by as u32 & 63);
            }
            _ => {}
        }
        let with = self.register(asm, right, if from == C { B } else { C });
        match op {
            Compute::Add => asm.add(to, from, with),
            Compute::Subtract => asm.sub(to, from, with),
            Compute::Multiply => asm.multiply(to, from, with),
            Compute::And => asm.and(to, from, with),
            Compute::Or => asm.or(to, from, with),
            Compute::Xor => asm.xor(to, from, with),
            Compute::Divide => asm.div(to, from, with),
            Compute::DivideSigned => asm.divide_signed(to, from, with),
            Compute::Remainder | Compute::RemainderSigned => {
                // No variable in use across a division is in one of these.
                let quotient = [A, B, C].into_iter().find(|reg| ![from, with].contains(reg)).unwrap_or(C);
                match op {
                    Compute::Remainder => asm.div(quotient, from, with),
                    _ => asm.divide_signed(quotient, from, with),
                }
                asm.mul_sub(to, quotient, with, from);
            }
            // Their right operand is a number (`verify`).
            Compute::ShiftLeft | Compute::ShiftRight | Compute::ShiftSigned => {}
        }
    }
    fn branch(&self, asm: &mut Asm, when: Compare, left: Operand, right: Operand) -> Fix {
        let from = self.register(asm, left, C);
        match (when, right) {
            (Compare::Equal, Operand::Number(0)) => return asm.if_zero_later(from),
            (Compare::NotEqual, Operand::Number(0)) => return asm.unless_zero_later(from),
            (Compare::Less, Operand::Number(0)) => return asm.if_sign_later(from),
            (Compare::GreaterEqual, Operand::Number(0)) => return asm.unless_sign_later(from),
            (_, Operand::Number(number)) if number.unsigned_abs() < 1 << 12 => {
                asm.compare_number(from, number)
            }
            _ => {
                let with = self.register(asm, right, if from == C { B } else { C });
                asm.compare(from, with);
            }
        }
        asm.if_later(condition(when))
    }
}

/// `to` = a number, by at most two instructions, or by one and a constant.
fn any_number(asm: &mut Asm, to: Reg, value: u64) {
    match u32::try_from(value) {
        Ok(value) => asm.number(to, value),
        Err(_) => asm.constant(to, value),
    }
}

fn unary(asm: &mut Asm, op: Unary, to: Reg, from: Reg) {
    match op {
        Unary::Negate => asm.negate(to, from),
        Unary::Complement => asm.not(to, from),
        Unary::Extend(Width { bits: 64.., .. }) if to == from => {}
        Unary::Extend(Width { bits: 64.., .. }) => asm.mov(to, from),
        Unary::Extend(Width { bits, signed: true }) => asm.signed_bits(to, from, bits.into()),
        Unary::Extend(Width { bits, signed: false }) => asm.bits(to, from, 0, bits.into()),
    }
}

/// Whether a jump leads to the next operation.
fn is_next(to: Target, next: Option<&Op>) -> bool {
    match (to, next) {
        (Target::Label(label), Some(Op::Bind { label: bound })) => label == *bound,
        (Target::Outcome(0), None) => true,
        _ => false,
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
