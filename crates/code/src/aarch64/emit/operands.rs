//! Operands of a program's code on arm64: where they are read, how they get into a register, comparisons and numbers.
//!
//! In: operands with locations. Out: instructions. Registers and words are those that `emit` names. Does not: choose them.

use super::{Emitter, Inputs};
use crate::aarch64::access::{is_reach, is_zero};
use crate::aarch64::asm::{Asm, Cond, Fix, Reg, SP};
use crate::allocate::Location;
use crate::compute::{Compare, Compute};
use crate::operand::{Operand, Place};
use crate::program::Commit;
use crate::walk::BackEnd as _;

impl<I: Inputs> Emitter<'_, I> {
    /// Adds by a load and a store.
    pub(super) fn add_alone(&mut self, commit: Commit, ordered: bool) {
        let (base, at) = self.reach(commit.place, if ordered { is_zero } else { is_reach });
        let word = self.way();
        self.asm.load_word(word, base, at);
        match commit.value {
            Operand::Number(number) => self.asm.add_imm(word, word, number),
            value => {
                let value = self.fetch(value);
                self.asm.add(word, word, value);
            }
        }
        if ordered { self.asm.store_release(word, base) } else { self.asm.store_word(word, base, at) }
    }
    pub(super) fn word(&self, word: u8) -> u32 {
        self.frame.words + 8 * u32::from(word)
    }
    /// The register that holds an operand, if one does.
    pub(super) fn register(&self, operand: Operand) -> Option<Reg> {
        let Operand::Var(var) = operand else { return None };
        match self.allocated.location(var) {
            Location::Register(register) => Some(register.into()),
            Location::Input(nth) => self.inputs.register(nth),
            Location::Word(_) | Location::Nowhere => None,
        }
    }
    /// The register with an operand; one that is in memory, or a number, is loaded into one on the way.
    pub(super) fn fetch(&mut self, operand: impl Into<Operand>) -> Reg {
        let operand = operand.into();
        match self.register(operand) {
            Some(register) => register,
            None => {
                let way = self.way();
                self.fetch_into(operand, way)
            }
        }
    }
    /// The same, by way of a register that is named.
    pub(super) fn fetch_into(&mut self, operand: impl Into<Operand>, way: Reg) -> Reg {
        let operand = operand.into();
        if let Some(register) = self.register(operand) {
            return register;
        }
        let var = match operand {
            Operand::Number(number) => {
                any_number(self.asm, way, i64::from(number).cast_unsigned());
                return way;
            }
            Operand::Var(var) => var,
        };
        match self.allocated.location(var) {
            Location::Word(word) => self.asm.load_at(way, SP, self.word(word)),
            Location::Input(nth) => self.inputs.load(self.asm, nth, way),
            _ => self.asm.number(way, 0),
        }
        way
    }
    /// A register and an offset from it that an instruction holds.
    pub(super) fn reach(&mut self, place: Place, is_in_reach: fn(i32) -> bool) -> (Reg, i32) {
        if place.index.is_none() && is_in_reach(place.offset) {
            return (self.fetch(place.base), place.offset);
        }
        let before = self.ways;
        let base = self.fetch(place.base);
        let index = place.index.map(|(index, shift)| (self.fetch(index), u32::from(shift) & 63));
        // Both have been read where the address is written.
        self.ways = before;
        let to = self.way();
        let base = match index {
            Some((index, shift)) => {
                self.asm.add_shifted(to, base, index, shift);
                to
            }
            None => base,
        };
        if is_in_reach(place.offset) {
            return (base, place.offset);
        }
        self.asm.add_imm(to, base, place.offset);
        (to, 0)
    }
    /// A jump that is taken if the comparison holds.
    pub(super) fn jump_if(&mut self, when: Compare, from: Reg, right: Operand) -> Fix {
        match (when, right) {
            (Compare::Equal, Operand::Number(0)) => return self.asm.if_zero_later(from),
            (Compare::NotEqual, Operand::Number(0)) => return self.asm.unless_zero_later(from),
            (Compare::Less, Operand::Number(0)) => return self.asm.if_sign_later(from),
            (Compare::GreaterEqual, Operand::Number(0)) => return self.asm.unless_sign_later(from),
            (_, Operand::Number(number)) if number.unsigned_abs() < 1 << 12 => {
                self.asm.compare_number(from, number);
            }
            _ => {
                let with = self.fetch(right);
                self.asm.compare(from, with);
            }
        }
        self.asm.if_later(condition(when))
    }
}

/// `to = from op number`, where an instruction holds the number. Returns whether one does.
pub(super) fn by_number(asm: &mut Asm, op: Compute, (to, from): (Reg, Reg), number: i32) -> bool {
    let is_short = number.unsigned_abs() < 1 << 24 && number != 0;
    let by = number as u32 & 63;
    match op {
        Compute::Add if is_short => asm.add_imm(to, from, number),
        Compute::Subtract if is_short => asm.add_imm(to, from, -number),
        Compute::And if number > 0 && (number as u32 + 1).is_power_of_two() => {
            asm.bits(to, from, 0, number.count_ones());
        }
        Compute::Or if number > 0 && (number as u32 + 1).is_power_of_two() => {
            asm.set_low(to, from, number.count_ones());
        }
        Compute::And if number < -1 && number.unsigned_abs().is_power_of_two() => {
            asm.clear_low(to, from, number.trailing_zeros());
        }
        Compute::ShiftLeft => asm.shift_left_by(to, from, by),
        Compute::ShiftRight => asm.shift_right_by(to, from, by),
        Compute::ShiftSigned => asm.shift_signed_by(to, from, by),
        _ => return false,
    }
    true
}

/// `to` = a number, by at most two instructions, or by one and a constant.
pub(super) fn any_number(asm: &mut Asm, to: Reg, value: u64) {
    match u32::try_from(value) {
        Ok(value) => asm.number(to, value),
        Err(_) => asm.constant(to, value),
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
