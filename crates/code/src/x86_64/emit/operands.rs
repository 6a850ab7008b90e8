//! Operands of a program's code on x86-64: where they are read, how they get into a register, comparisons and divisions.
//!
//! In: operands with locations. Out: instructions. Registers and words are those that `emit` names. Does not: choose them.

use super::{Emitter, Inputs};
use crate::allocate::Location;
use crate::compute::{Compare, Compute};
use crate::operand::{Operand, Place};
use crate::walk::BackEnd as _;
use crate::x86_64::asm::{Alu, Asm, Cond, Fix, Mem, R11, RAX, RDX, Reg, Shift};

/// Where an operand is read.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Register(Reg),
    Memory(Mem),
    Number(i32),
}

impl<I: Inputs> Emitter<'_, '_, I> {
    /// The register with an operand; what is in none is loaded into one on the way.
    pub(super) fn fetch(&mut self, operand: impl Into<Operand>) -> Reg {
        let operand = operand.into();
        match self.source(operand) {
            Source::Register(register) => register,
            _ => {
                let way = self.way();
                self.put(way, operand);
                way
            }
        }
    }
    /// Adds a value to a word in memory, by one instruction.
    pub(super) fn add_to(&mut self, place: Place, value: Operand, lock: bool) {
        let mem = self.mem(place);
        match self.source(value) {
            Source::Number(number) => self.asm.add_mem_imm(mem, number, lock),
            _ => {
                let value = self.fetch(value);
                self.asm.alu_store(Alu::Add, mem, value, lock);
            }
        }
    }
    /// A word in memory as an instruction's operand.
    pub(super) fn mem(&mut self, place: Place) -> Mem {
        let base = self.fetch(place.base);
        match place.index {
            None => Mem::At(base, place.offset),
            Some((index, shift @ ..=3)) => Mem::Sum(base, self.fetch(index), shift, place.offset),
            Some((index, shift)) => {
                let shifted = self.way();
                self.put(shifted, index);
                self.asm.shift(Shift::Left, shifted, shift & 63, true);
                Mem::Sum(base, shifted, 0, place.offset)
            }
        }
    }
    pub(super) fn jump_if(&mut self, when: Compare, left: Source, right: Source) -> Fix {
        let jump = |asm: &mut Asm<'_>| {
            let condition = compare(asm, when, left, right);
            asm.jcc_later(condition)
        };
        if self.frame.unbroken { self.asm.unbroken(jump) } else { jump(self.asm) }
    }
    pub(super) fn source(&self, operand: impl Into<Operand>) -> Source {
        let var = match operand.into() {
            Operand::Number(number) => return Source::Number(number),
            Operand::Var(var) => var,
        };
        match self.allocated.location(var) {
            Location::Register(register) => Source::Register(Reg(register)),
            Location::Word(word) => Source::Memory(self.frame.words[usize::from(word)]),
            Location::Input(nth) => self.inputs.register(nth).map_or(Source::Number(0), Source::Register),
            Location::Nowhere => Source::Number(0),
        }
    }
    /// `to` = an operand.
    pub(super) fn put(&mut self, to: Reg, from: impl Into<Operand>) {
        match self.source(from) {
            Source::Register(from) if from == to => {}
            Source::Register(from) => self.asm.mov(to, from),
            Source::Memory(from) => self.asm.load(to, from),
            Source::Number(number) => self.asm.mov_imm64(to, i64::from(number).cast_unsigned()),
        }
    }
    /// Divides rax by r11.
    pub(super) fn divide(&mut self, op: Compute, to: Reg, (left, right): (Operand, Operand)) {
        match (self.source(left), self.source(right)) {
            (Source::Register(R11), Source::Register(RAX)) => self.asm.exchange(RAX, R11),
            (_, Source::Register(RAX | R11)) => {
                // The divisor first: rax may hold it.
                self.put(R11, right);
                self.put(RAX, left);
            }
            _ => {
                self.put(RAX, left);
                self.put(R11, right);
            }
        }
        match op {
            Compute::Divide | Compute::Remainder => {
                self.asm.mov_imm32(RDX, 0);
                self.asm.div(R11);
            }
            _ => self.asm.divide_signed(R11),
        }
        match op {
            Compute::Remainder | Compute::RemainderSigned => self.asm.mov(to, RDX),
            _ if to != RAX => self.asm.mov(to, RAX),
            _ => {}
        }
        if self.reloads > 0 {
            self.reloads -= 1;
            self.asm.load(RDX, self.frame.rdx);
        }
    }
}

/// Sets flags by a comparison, and says when a jump is to be taken. They are not both in memory, and the left one is no
/// number.
fn compare(asm: &mut Asm<'_>, when: Compare, left: Source, right: Source) -> Cond {
    match (left, right, when) {
        (Source::Register(left), Source::Number(0), Compare::Equal | Compare::NotEqual) => {
            asm.test(left, left, true);
        }
        (Source::Register(left), Source::Number(0), Compare::Less | Compare::GreaterEqual) => {
            asm.test(left, left, true);
            return if when == Compare::Less { Cond::Sign } else { Cond::NotSign };
        }
        (Source::Register(left), Source::Register(right), _) => asm.alu(Alu::Cmp, left, right),
        (Source::Register(left), Source::Memory(right), _) => asm.alu_load(Alu::Cmp, left, right),
        (Source::Register(left), Source::Number(number), _) => asm.alu_imm(Alu::Cmp, left, number, true),
        (Source::Memory(left), Source::Register(right), _) => asm.alu_store(Alu::Cmp, left, right, false),
        (Source::Memory(left), Source::Number(number), _) => asm.cmp_mem_imm(left, number),
        (Source::Memory(_), Source::Memory(_), _) | (Source::Number(_), ..) => {}
    }
    condition(when)
}

/// `to = to op with`
pub(super) fn with_source(asm: &mut Asm<'_>, op: Compute, to: Reg, with: Source) {
    match (op, with) {
        (Compute::ShiftLeft, Source::Number(by)) => asm.shift(Shift::Left, to, by as u8 & 63, true),
        (Compute::ShiftRight, Source::Number(by)) => asm.shift(Shift::Right, to, by as u8 & 63, true),
        (Compute::ShiftSigned, Source::Number(by)) => asm.shift(Shift::SignedRight, to, by as u8 & 63, true),
        (Compute::Multiply, Source::Register(with)) => asm.multiply(to, with),
        (Compute::Multiply, Source::Memory(with)) => asm.multiply_load(to, with),
        (Compute::Multiply, Source::Number(number)) => asm.imul_imm(to, to, number, true),
        (_, Source::Register(with)) => asm.alu(alu(op), to, with),
        (_, Source::Memory(with)) => asm.alu_load(alu(op), to, with),
        (_, Source::Number(number)) => asm.alu_imm(alu(op), to, number, true),
    }
}

const fn alu(op: Compute) -> Alu {
    match op {
        Compute::Subtract => Alu::Sub,
        Compute::And => Alu::And,
        Compute::Or => Alu::Or,
        Compute::Xor => Alu::Xor,
        _ => Alu::Add,
    }
}

pub(super) const fn condition(when: Compare) -> Cond {
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
