//! Instructions that records and tables of values need: ordered accesses, exclusive and atomic ones, and
//! accesses at a distance that is in a register.
//!
//! In: registers. Out: words ([`Asm`]). Encodings: Arm ARM C6.2.

use super::asm::{Asm, Fix, Reg};

impl Asm {
    /// `stlr from, [to]`: earlier stores are seen before it.
    pub(super) fn store_release(&mut self, from: Reg, to: Reg) {
        self.word(0xC89F_FC00 | to << 5 | from);
    }
    /// `casa old, new, [at]` (FEAT_LSE): `old` gets the previous value.
    pub(super) fn compare_swap(&mut self, old: Reg, new: Reg, at: Reg) {
        self.word(0xC8E0_7C00 | old << 16 | at << 5 | new);
    }
    /// `ldaxr to, [from]`
    pub(super) fn load_exclusive_acquire(&mut self, to: Reg, from: Reg) {
        self.word(0xC85F_FC00 | from << 5 | to);
    }
    /// `ldr to, [from, past]`
    pub(super) fn load_past(&mut self, to: Reg, from: Reg, past: Reg) {
        self.word(0xF860_6800 | past << 16 | from << 5 | to);
    }
    /// `ldrb to, [from, past]`, zero-extended
    pub(super) fn load_byte(&mut self, to: Reg, from: Reg, past: Reg) {
        self.word(0x3860_6800 | past << 16 | from << 5 | to);
    }
    /// `strb from, [to, past]`
    pub(super) fn store_byte(&mut self, from: Reg, to: Reg, past: Reg) {
        self.word(0x3820_6800 | past << 16 | to << 5 | from);
    }
    /// `str from, [to, past]`
    pub(super) fn store_past(&mut self, from: Reg, to: Reg, past: Reg) {
        self.word(0xF820_6800 | past << 16 | to << 5 | from);
    }
    /// `to` = `from` with its low `bits` bits set.
    pub(super) fn set_low(&mut self, to: Reg, from: Reg, bits: u32) {
        self.word(0xB240_0000 | ((bits - 1) & 63) << 10 | from << 5 | to);
    }
    /// `to` = `from` with its low `bits` bits clear; `bits` is 1 to 63.
    pub(super) fn clear_low(&mut self, to: Reg, from: Reg, bits: u32) {
        self.word(0x9240_0000 | ((64 - bits) & 63) << 16 | ((63 - bits) & 63) << 10 | from << 5 | to);
    }
    /// Branches if bit `bit`, below 32, is set.
    pub(super) fn if_bit_later(&mut self, of: Reg, bit: u32) -> Fix {
        self.later(0x3700_0000 | (bit & 31) << 19 | of)
    }
    /// `xpaclri`: removes the signature from x30. It has no effect if there is none, or if the processor has
    /// no such feature.
    pub(super) fn strip_link(&mut self) {
        self.word(0xD503_20FF);
    }
    /// `umulh to, a, b`: the upper half of an unsigned product.
    pub(super) fn multiply_high(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x9BC0_7C00 | b << 16 | a << 5 | to);
    }
    /// `extr`: 64 bits of `high` and `low` together, from bit `at` of `low` on; `at` is below 64.
    pub(super) fn extract(&mut self, to: Reg, (high, low): (Reg, Reg), at: u32) {
        self.word(0x93C0_0000 | low << 16 | (at & 63) << 10 | high << 5 | to);
    }
    /// `svc #0`: of the general registers, the kernel spoils only x0.
    pub(super) fn system_call(&mut self) {
        self.word(0xD400_0001);
    }
    /// `mov to, sp`
    pub(super) fn stack_pointer(&mut self, to: Reg) {
        self.word(0x9100_03E0 | to);
    }
    /// `str d<vector>, [to, #at]`; `at` a multiple of 8 below 32 KiB.
    pub(super) fn store_vector(&mut self, vector: u32, to: Reg, at: u32) {
        self.word(0xFD00_0000 | (at / 8) << 10 | to << 5 | vector);
    }
}
