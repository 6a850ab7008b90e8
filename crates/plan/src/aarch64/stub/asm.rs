//! The words of a stub, one after another.
//!
//! In: instructions with their operands; places in the code to be named later. Out: words. What does not fit its form is remembered, and
//! the code is then none. Registers are numbers; 31 is sp or zero, as the instruction has it. Encodings: Arm ARM C6.2.

use trapline_insn::aarch64::{Gpr, encode};

/// A general register.
pub(super) type Reg = u32;
pub(super) const SP: Reg = 31;
pub(super) const ZERO: Reg = 31;

/// A word that names a place which comes later.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Fix(usize);

/// Code under construction.
#[derive(Clone, Debug)]
pub(super) struct Asm {
    words: Vec<u32>,
    origin: u64,
    /// A distance was too long for its form.
    broken: bool,
}

impl Asm {
    pub(super) const fn new(origin: u64) -> Self {
        Self { words: Vec::new(), origin, broken: false }
    }
    /// Address of the next word.
    pub(super) const fn here(&self) -> u64 {
        self.origin.wrapping_add(4 * self.words.len() as u64)
    }
    pub(super) fn words(self) -> Option<Vec<u32>> {
        (!self.broken).then_some(self.words)
    }
    pub(super) fn word(&mut self, word: u32) {
        self.words.push(word);
    }
    pub(super) fn double(&mut self, value: u64) {
        self.words.extend([value as u32, (value >> 32) as u32]);
    }
    pub(super) fn align(&mut self, to: u64) {
        while !self.here().is_multiple_of(to) {
            self.word(encode::NOP);
        }
    }
    fn push(&mut self, word: Option<u32>) {
        self.broken |= word.is_none();
        self.word(word.unwrap_or(encode::BRK));
    }
    fn later(&mut self, word: u32) -> Fix {
        self.word(word);
        Fix(self.words.len() - 1)
    }
    /// The place that `fix` names is here.
    pub(super) fn bind(&mut self, fix: Fix) {
        let (from, to) = (self.origin.wrapping_add(4 * fix.0 as u64), self.here());
        let Some(word) = self.words.get_mut(fix.0) else { return };
        let distance = to.wrapping_sub(from);
        let bound = match *word >> 24 {
            // tbz, tbnz: 14 bits.
            0x36 | 0x37 => {
                *word |= (distance as u32 >> 2 & 0x3FFF) << 5;
                1 << 15
            }
            // adr: 21 bits.
            0x10 => {
                *word |= (distance as u32 >> 2 & 0x7_FFFF) << 5;
                1 << 20
            }
            // Literals, cbnz: 19 bits.
            _ => {
                *word |= (distance as u32 >> 2 & 0x7_FFFF) << 5;
                1 << 20
            }
        };
        self.broken |= distance >= bound;
    }
    pub(super) fn b(&mut self, to: u64) {
        self.push(encode::b(self.here(), to));
    }
    pub(super) fn adr_later(&mut self, to: Reg) -> Fix {
        self.later(0x1000_0000 | to)
    }
    /// `ldr to, literal`
    pub(super) fn literal_later(&mut self, to: Reg) -> Fix {
        self.later(0x5800_0000 | to)
    }
    /// Branches if bit 31 is set.
    pub(super) fn if_negative_later(&mut self, of: Reg) -> Fix {
        self.later(0x37F8_0000 | of)
    }
    /// Branches if bit 31 is clear.
    pub(super) fn unless_negative_later(&mut self, of: Reg) -> Fix {
        self.later(0x36F8_0000 | of)
    }
    /// `cbnz of, to`, 32 bits.
    pub(super) fn unless_zero(&mut self, of: Reg, to: u64) {
        self.push(encode::with_imm19(0x3500_0000 | of, self.here(), to));
    }
    pub(super) fn thread_pointer(&mut self, to: Reg) {
        self.word(0xD53B_D040 | to);
    }
    /// `ldr to, [from, #at]` of 32 bits; `at` a multiple of 4 below 16 KiB.
    pub(super) fn load32(&mut self, to: Reg, from: Reg, at: u32) {
        self.word(0xB940_0000 | (at / 4) << 10 | from << 5 | to);
    }
    /// `ldr to, [from]`
    pub(super) fn load(&mut self, to: Reg, from: Reg) {
        self.word(0xF940_0000 | from << 5 | to);
    }
    /// `str from, [to, #at]`; `at` a multiple of 8 below 32 KiB.
    pub(super) fn store(&mut self, from: Reg, to: Reg, at: u32) {
        self.word(0xF900_0000 | (at / 8) << 10 | to << 5 | from);
    }
    /// `add to, from, #amount`, or `sub` if that is negative: two words at most. Flags stay.
    pub(super) fn add_imm(&mut self, to: Reg, from: Reg, amount: i32) {
        let (opcode, size) =
            if amount < 0 { (0xD100_0000, amount.unsigned_abs()) } else { (0x9100_0000, amount as u32) };
        self.broken |= size >> 24 != 0;
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
    pub(super) fn subtract32(&mut self, to: Reg, amount: u32) {
        self.broken |= amount >> 12 != 0;
        self.word(0x5100_0000 | (amount & 0xFFF) << 10 | to << 5 | to);
    }
    /// `to` becomes 64 times its low half, signed.
    pub(super) fn lines(&mut self, to: Reg) {
        self.word(0x937A_7C00 | to << 5 | to);
    }
    pub(super) fn add(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x8B00_0000 | b << 16 | a << 5 | to);
    }
    /// `len` bits of `of` from bit `at` on.
    pub(super) fn bits(&mut self, to: Reg, of: Reg, at: u32, len: u32) {
        self.word(0xD340_0000 | (at & 63) << 16 | ((at + len - 1) & 63) << 10 | of << 5 | to);
    }
    pub(super) fn one(&mut self, to: Reg) {
        self.word(encode::movz(Gpr::field(to, 0), 1, 0));
    }
    /// `stadd what, [to]` (FEAT_LSE).
    pub(super) fn add_atomic(&mut self, what: Reg, to: Reg) {
        self.word(0xF820_001F | what << 16 | to << 5);
    }
    pub(super) fn load_exclusive(&mut self, to: Reg, from: Reg) {
        self.word(0xC85F_7C00 | from << 5 | to);
    }
    pub(super) fn store_exclusive(&mut self, failed: Reg, from: Reg, to: Reg) {
        self.word(0xC800_7C00 | failed << 16 | to << 5 | from);
    }
    /// `stp a, b, [sp, #at]`; `at` a multiple of 8 below 512.
    pub(super) fn store_pair(&mut self, a: Reg, b: Reg, at: u32) {
        self.word(0xA900_0000 | (at / 8) << 15 | b << 10 | SP << 5 | a);
    }
    /// `ldr to, [sp, #at]`; `at` a multiple of 8 below 32 KiB.
    pub(super) fn load_from_stack(&mut self, to: Reg, at: u32) {
        self.word(0xF940_0000 | (at / 8) << 10 | SP << 5 | to);
    }
    /// `blr to`
    pub(super) fn call(&mut self, to: Reg) {
        self.word(0xD63F_0000 | to << 5);
    }
    /// `stp a, b, [sp, #-16]!`
    pub(super) fn push_pair(&mut self, a: Reg, b: Reg) {
        self.word(0xA9BF_0000 | b << 10 | SP << 5 | a);
    }
    /// `ldp a, b, [sp], #16`
    pub(super) fn pop_pair(&mut self, a: Reg, b: Reg) {
        self.word(0xA8C1_0000 | b << 10 | SP << 5 | a);
    }
}
