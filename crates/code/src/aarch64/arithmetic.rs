//! Instructions that compute, from registers and constants.
//!
//! In: registers and numbers. Out: words ([`Asm`]). Encodings: Arm ARM C6.2.
#![allow(missing_docs, reason = "a name without a sentence is its instruction's")]

use super::asm::{Asm, Cond, Reg, ZERO};
use trapline_insn::aarch64::{Gpr, encode};

impl Asm {
    /// `add to, from, #amount`, or `sub` if that is negative: two words at most. Flags stay.
    #[inline]
    pub fn add_imm(&mut self, to: Reg, from: Reg, amount: i32) {
        let (opcode, size) =
            if amount < 0 { (0xD100_0000, amount.unsigned_abs()) } else { (0x9100_0000, amount as u32) };
        self.require(size >> 24 == 0);
        let mut from = from;
        if size >> 12 & 0xFFF != 0 {
            self.word(opcode | 1 << 22 | (size >> 12 & 0xFFF) << 10 | from << 5 | to);
            from = to;
        }
        if size & 0xFFF != 0 {
            self.word(opcode | (size & 0xFFF) << 10 | from << 5 | to);
        }
    }
    /// `sub to, to, #amount`, 32 bits.
    #[inline]
    pub fn subtract32(&mut self, to: Reg, amount: u32) {
        self.require(amount >> 12 == 0);
        self.word(0x5100_0000 | (amount & 0xFFF) << 10 | to << 5 | to);
    }
    /// `to` = 64 times its low half, signed.
    #[inline]
    pub fn lines(&mut self, to: Reg) {
        self.word(0x937A_7C00 | to << 5 | to);
    }
    #[inline]
    pub fn add(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x8B00_0000 | b << 16 | a << 5 | to);
    }
    /// `to` = `len` bits of `of`, from bit `at` on.
    #[inline]
    pub fn bits(&mut self, to: Reg, of: Reg, at: u32, len: u32) {
        self.word(0xD340_0000 | (at & 63) << 16 | ((at + len - 1) & 63) << 10 | of << 5 | to);
    }
    #[inline]
    pub fn one(&mut self, to: Reg) {
        self.word(encode::movz(Gpr::field(to, 0), 1, 0));
    }
    /// `to = 1 << 63`
    #[inline]
    pub fn highest_bit(&mut self, to: Reg) {
        self.word(encode::movz(Gpr::field(to, 0), 1 << 15, 3));
    }
    #[inline]
    pub fn reverse_bits(&mut self, to: Reg, of: Reg) {
        self.word(0xDAC0_0000 | of << 5 | to);
    }
    /// `to` = a number of 32 bits.
    #[inline]
    pub fn number(&mut self, to: Reg, value: u32) {
        if value != 0 && value as u16 == 0 {
            return self.word(encode::movz(Gpr::field(to, 0), (value >> 16) as u16, 1));
        }
        self.word(encode::movz(Gpr::field(to, 0), value as u16, 0));
        if value >> 16 != 0 {
            self.word(encode::movk(Gpr::field(to, 0), (value >> 16) as u16, 1));
        }
    }
    /// `cmp a, b`
    #[inline]
    pub fn compare(&mut self, a: Reg, b: Reg) {
        self.subs(ZERO, a, b);
    }
    /// `cmp a, #number`, or `cmn` if that is negative; of less than 4096.
    #[inline]
    pub fn compare_number(&mut self, a: Reg, number: i32) {
        let size = number.unsigned_abs();
        self.require(size >> 12 == 0);
        let opcode = if number < 0 { 0xB100_001F } else { 0xF100_001F };
        self.word(opcode | (size & 0xFFF) << 10 | a << 5);
    }
    /// `cmp a, #number` of 32 bits; less than 4096.
    #[inline]
    pub fn compare_low(&mut self, a: Reg, number: u32) {
        self.require(number >> 12 == 0);
        self.word(0x7100_001F | (number & 0xFFF) << 10 | a << 5);
    }
    /// `subs to, a, b`
    #[inline]
    pub fn subs(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xEB00_0000 | b << 16 | a << 5 | to);
    }
    #[inline]
    pub fn sub(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xCB00_0000 | b << 16 | a << 5 | to);
    }
    /// `add to, a, b, lsl #shift`
    #[inline]
    pub fn add_shifted(&mut self, to: Reg, a: Reg, b: Reg, shift: u32) {
        self.word(0x8B00_0000 | b << 16 | (shift & 63) << 10 | a << 5 | to);
    }
    /// `add to, a, b, sxtw #shift` or, without a sign, `uxtw`; `a` = 31 is sp.
    #[inline]
    pub fn add_extended(&mut self, to: Reg, a: Reg, b: Reg, (signed, shift): (bool, u32)) {
        let extend = if signed { 0b110 } else { 0b010 };
        self.word(0x8B20_0000 | b << 16 | extend << 13 | (shift & 7) << 10 | a << 5 | to);
    }
    #[inline]
    pub fn or(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xAA00_0000 | b << 16 | a << 5 | to);
    }
    /// `mvn to, of`
    #[inline]
    pub fn not(&mut self, to: Reg, of: Reg) {
        self.word(0xAA20_03E0 | of << 16 | to);
    }
    /// `mov to, from`; 31 is zero.
    #[inline]
    pub fn mov(&mut self, to: Reg, from: Reg) {
        self.or(to, ZERO, from);
    }
    /// `csel to, a, b, cond`
    #[inline]
    pub fn select(&mut self, to: Reg, a: Reg, b: Reg, cond: Cond) {
        self.word(0x9A80_0000 | b << 16 | (cond as u32) << 12 | a << 5 | to);
    }
    /// The product of the low halves, 32 bits.
    #[inline]
    pub fn mul32(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x1B00_7C00 | b << 16 | a << 5 | to);
    }
    /// `madd to, a, b, plus`
    #[inline]
    pub fn mul_add(&mut self, to: Reg, a: Reg, b: Reg, plus: Reg) {
        self.word(0x9B00_0000 | b << 16 | plus << 10 | a << 5 | to);
    }
    #[inline]
    pub fn div(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x9AC0_0800 | b << 16 | a << 5 | to);
    }
    /// `lsr to, of, by`
    #[inline]
    pub fn shift_right(&mut self, to: Reg, of: Reg, by: Reg) {
        self.word(0x9AC0_2400 | by << 16 | of << 5 | to);
    }
    #[inline]
    pub fn leading_zeros(&mut self, to: Reg, of: Reg) {
        self.word(0xDAC0_1000 | of << 5 | to);
    }
    #[inline]
    pub fn and(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x8A00_0000 | b << 16 | a << 5 | to);
    }
    #[inline]
    pub fn xor(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xCA00_0000 | b << 16 | a << 5 | to);
    }
    /// `orr to, a, b, lsl #shift`
    #[inline]
    pub fn or_shifted(&mut self, to: Reg, a: Reg, b: Reg, shift: u32) {
        self.word(0xAA00_0000 | b << 16 | (shift & 63) << 10 | a << 5 | to);
    }
    #[inline]
    pub fn negate(&mut self, to: Reg, of: Reg) {
        self.sub(to, ZERO, of);
    }
    #[inline]
    pub fn multiply(&mut self, to: Reg, a: Reg, b: Reg) {
        self.mul_add(to, a, b, ZERO);
    }
    /// `sdiv to, a, b`
    #[inline]
    pub fn divide_signed(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x9AC0_0C00 | b << 16 | a << 5 | to);
    }
    /// `msub to, a, b, from`: `from` minus the product.
    #[inline]
    pub fn mul_sub(&mut self, to: Reg, a: Reg, b: Reg, from: Reg) {
        self.word(0x9B00_8000 | b << 16 | from << 10 | a << 5 | to);
    }
    /// `to` = the low `len` bits of `of`, as a signed number.
    #[inline]
    pub fn signed_bits(&mut self, to: Reg, of: Reg, len: u32) {
        self.word(0x9340_0000 | ((len - 1) & 63) << 10 | of << 5 | to);
    }
    /// `lsl to, of, #by`, by less than 64.
    #[inline]
    pub fn shift_left_by(&mut self, to: Reg, of: Reg, by: u32) {
        self.word(0xD340_0000 | ((64 - by) & 63) << 16 | ((63 - by) & 63) << 10 | of << 5 | to);
    }
    /// `lsr to, of, #by`, by less than 64.
    #[inline]
    pub fn shift_right_by(&mut self, to: Reg, of: Reg, by: u32) {
        self.word(0xD340_FC00 | (by & 63) << 16 | of << 5 | to);
    }
    /// `asr to, of, #by`, by less than 64.
    #[inline]
    pub fn shift_signed_by(&mut self, to: Reg, of: Reg, by: u32) {
        self.word(0x9340_FC00 | (by & 63) << 16 | of << 5 | to);
    }
    /// `fmov to, dN`: the low 64 bits of a vector register, which stays as it is.
    #[inline]
    pub fn vector_to(&mut self, to: Reg, vector: u32) {
        self.word(0x9E66_0000 | (vector & 31) << 5 | to);
    }
    /// `to` = `from` with its low `bits` bits set.
    #[inline]
    pub fn set_low(&mut self, to: Reg, from: Reg, bits: u32) {
        self.word(0xB240_0000 | ((bits - 1) & 63) << 10 | from << 5 | to);
    }
    /// `to` = `from` with its low `bits` bits clear; `bits` is 1 to 63.
    #[inline]
    pub fn clear_low(&mut self, to: Reg, from: Reg, bits: u32) {
        self.word(0x9240_0000 | ((64 - bits) & 63) << 16 | ((63 - bits) & 63) << 10 | from << 5 | to);
    }
    /// `umulh to, a, b`: the upper half of an unsigned product.
    #[inline]
    pub fn multiply_high(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x9BC0_7C00 | b << 16 | a << 5 | to);
    }
    /// `extr`: 64 bits of `high` and `low` together, from bit `at` of `low` on; `at` is below 64.
    #[inline]
    pub fn extract(&mut self, to: Reg, (high, low): (Reg, Reg), at: u32) {
        self.word(0x93C0_0000 | low << 16 | (at & 63) << 10 | high << 5 | to);
    }
}
