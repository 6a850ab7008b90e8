//! Puts arguments where code that follows the psABI has them, for the actions of code that does not: USDT probes.
//! (Go's arguments are in x0 and on, as C's are.)
//!
//! In: a stub, the operands of a USDT probe. Out: the stub, with code before it that moves the operands there, and
//! code behind it that moves all registers back. No flag is changed. Does not: read memory.
//!
//! # Protocol
//!
//! The six argument registers are stored below the stack pointer, which is lowered first, and each is loaded with an
//! operand. If the operand is one of the six, its stored word is loaded, otherwise the register itself. Operands from
//! the seventh on are stored before that, at the stack pointer of the action. Behind the action all of it is loaded
//! again. A signal handler in between runs below what was stored. If the tracer dies, nothing remains: all of it
//! belongs to the hit. Memory operands are addresses here; what they point to is read as any field is (`text`).
//!
//! ```text
//!   sp                operand 6, if there is one; operand 7, …      <- sp at the action
//!   sp + more         SPARE: a register that gives way for a moment; a word that is not used
//!   sp + more + 16    x0, x1
//!   sp + more + 32    x2, x3
//!   sp + more + 48    x4, x5
//!   S                 <- the program's stack pointer; more: 8 for each operand from the seventh on, rounded up to 16
//!   x0 … x5           the first six operands
//! ```

use trapline_image::Extend;
use trapline_insn::aarch64::{Gpr, encode};
use trapline_record::addr::Bias;

use super::asm::{Asm, NoWords, Reg, SP};
use super::filter::ARGUMENTS;
use super::pending::Code;
use crate::filter::OPERANDS;
use crate::hit::TEXTS_OF_KEYS;
use crate::request::Operand;

/// Bytes of the spare words and of the stored registers.
const STORED: u32 = 16 + 8 * ARGUMENTS as u32;
/// Upper bound of the code bytes around the action of a USDT probe.
pub(in crate::aarch64) const MARK_BYTES: u64 = 4 * (2 * 5 + 7 * (OPERANDS + TEXTS_OF_KEYS) as u64);

/// Where a hit's arguments are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArgumentForm<'a> {
    /// Where stubs expect them.
    AsInC,
    /// Where the note of a USDT probe places them.
    AsNoted(&'a [Operand], Bias),
}

impl ArgumentForm<'_> {
    /// The words before the action.
    fn before(self) -> Result<Vec<u32>, NoWords> {
        let Self::AsNoted(operands, bias) = self else { return Ok(Vec::new()) };
        let (first, more) = operands.split_at(operands.len().min(ARGUMENTS));
        let frame = Frame { more: more_bytes(operands), bias };
        // No instruction here depends on its own address.
        let mut asm = Asm::new(0);
        asm.add_imm(SP, SP, -frame.bytes().cast_signed());
        for pair in [0, 2, 4] {
            asm.store_two(pair, pair + 1, SP, frame.stored(pair));
        }
        for (nth, &operand) in (0..).zip(more) {
            frame.load(&mut asm, 0, operand);
            asm.store(0, SP, 8 * nth);
        }
        for (to, &operand) in (0..).zip(first) {
            frame.load(&mut asm, to, operand);
        }
        asm.words()
    }
    /// The words behind the action.
    fn after(self) -> Result<Vec<u32>, NoWords> {
        let Self::AsNoted(operands, bias) = self else { return Ok(Vec::new()) };
        let frame = Frame { more: more_bytes(operands), bias };
        let mut asm = Asm::new(0);
        for pair in [0, 2, 4] {
            asm.load_two(pair, pair + 1, SP, frame.stored(pair));
        }
        asm.add_imm(SP, SP, frame.bytes().cast_signed());
        asm.words()
    }
    /// Bytes of the code before the action.
    #[must_use]
    pub fn bytes_before(self) -> u64 {
        self.before().map_or(0, |words| 4 * words.len() as u64)
    }
}

/// Bytes of the operands from the seventh on.
const fn more_bytes(operands: &[Operand]) -> u32 {
    (8 * operands.len().saturating_sub(ARGUMENTS) as u32).next_multiple_of(16)
}

/// The stack while operands are loaded.
#[derive(Clone, Copy)]
struct Frame {
    more: u32,
    bias: Bias,
}

impl Frame {
    const fn bytes(self) -> u32 {
        self.more + STORED
    }
    /// Offset at which an argument register was stored.
    const fn stored(self, reg: Reg) -> u32 {
        self.more + 16 + 8 * reg
    }
    /// Whether a register is not what it was, and its value must be fetched.
    const fn is_moved(reg: Reg) -> bool {
        reg < ARGUMENTS as u32 || reg == SP
    }
    /// `to` = the program's value of a register.
    fn fetch(self, asm: &mut Asm, to: Reg, from: Reg) {
        match from {
            SP => asm.add_imm(to, SP, self.bytes().cast_signed()),
            _ if Self::is_moved(from) => asm.load_at(to, SP, self.stored(from)),
            _ => asm.mov(to, from),
        }
    }
    /// `to` = the operand; `to` is one of the six.
    fn load(self, asm: &mut Asm, to: Reg, operand: Operand) {
        match operand {
            Operand::Register(from) => self.fetch(asm, to, u32::from(from & 31)),
            Operand::Vector(from) => asm.vector_to(to, u32::from(from)),
            Operand::Constant(value) => number(asm, to, value.cast_unsigned()),
            Operand::Static(at) => number(asm, to, self.bias.live(at).0),
            Operand::Sum { base, index, scale, extend } => {
                let (base, index) = (u32::from(base & 31), u32::from(index & 31));
                let add = |asm: &mut Asm, base: Reg, index: Reg| match extend {
                    Extend::Whole => asm.add_shifted(to, base, index, scale.into()),
                    Extend::Signed => asm.add_extended(to, base, index, (true, scale.into())),
                    Extend::Unsigned => asm.add_extended(to, base, index, (false, scale.into())),
                };
                self.fetch(asm, to, index);
                if !Self::is_moved(base) {
                    return add(asm, base, to);
                }
                // Another register gives way for a moment.
                let other = if to == 0 { 1 } else { 0 };
                asm.store(other, SP, self.more);
                self.fetch(asm, other, base);
                add(asm, other, to);
                asm.load_at(other, SP, self.more);
            }
            Operand::Unknown => asm.number(to, 0),
        }
    }
}

/// `to = value`, without memory.
fn number(asm: &mut Asm, to: Reg, value: u64) {
    let half = |nth: u32| (value >> (16 * nth)) as u16;
    let to = Gpr::field(to, 0);
    asm.word(encode::movz(to, half(0), 0));
    for nth in (1..4).filter(|nth| half(*nth) != 0) {
        asm.word(encode::movk(to, half(nth), nth));
    }
}

/// A stub with its arguments moved to where it expects them.
#[derive(Debug)]
pub struct Moved<'a, C> {
    stub: C,
    form: ArgumentForm<'a>,
}

impl<'a, C> Moved<'a, C> {
    /// `stub` was begun behind the words before the action ([`ArgumentForm::bytes_before`]).
    pub const fn new(stub: C, form: ArgumentForm<'a>) -> Self {
        Self { stub, form }
    }
}

impl<C: Code> Code for Moved<'_, C> {
    fn displaced_at(&self) -> u64 {
        self.stub.displaced_at() + self.form.after().map_or(0, |words| 4 * words.len() as u64)
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        if self.form == ArgumentForm::AsInC {
            return self.stub.finish(displaced, back);
        }
        let stub = self.stub.finish(&[&self.form.after()?, displaced].concat(), back)?;
        Ok([self.form.before()?, stub].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::{ArgumentForm, Bias, Extend, MARK_BYTES, OPERANDS, Operand, TEXTS_OF_KEYS};

    #[test]
    fn what_stands_around_an_action_is_bounded() {
        let around = |form: ArgumentForm<'_>| {
            let words = |words: Result<Vec<u32>, _>| 4 * words.expect("in reach").len() as u64;
            words(form.before()) + words(form.after())
        };
        assert_eq!(around(ArgumentForm::AsInC), 0);
        let bias = Bias::default();
        for operand in [
            Operand::Register(31),
            Operand::Vector(31),
            Operand::Constant(-2),
            Operand::Static(trapline_record::Svma(u64::MAX / 2)),
            Operand::Sum { base: 0, index: 5, scale: 3, extend: Extend::Whole },
            Operand::Sum { base: 31, index: 13, scale: 2, extend: Extend::Signed },
            Operand::Unknown,
        ] {
            for count in 0..=OPERANDS + TEXTS_OF_KEYS {
                let operands = vec![operand; count];
                let form = ArgumentForm::AsNoted(&operands, bias);
                assert!(around(form) <= MARK_BYTES, "{operand:?}: {}", around(form));
                assert_eq!(form.bytes_before() % 4, 0);
            }
        }
    }
}
