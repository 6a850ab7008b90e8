//! Instructions that read and write memory: plain, ordered, exclusive and atomic ones, and those at a
//! distance that is in a register.
//!
//! In: registers. Out: words ([`Asm`]). Encodings: Arm ARM C6.2.
#![allow(missing_docs, reason = "a name without a sentence is its instruction's")]

use super::asm::{Asm, Cond, Reg, SP, Update};

/// Whether an instruction holds the offset of a word.
pub(super) const fn is_reach(at: i32) -> bool {
    matches!(at, -256..=255) || at >= 0 && at < 1 << 15 && at % 8 == 0
}

/// The same for a byte.
pub(super) const fn is_byte_reach(at: i32) -> bool {
    matches!(at, 0..4096)
}

/// The same for instructions without an offset.
pub(super) const fn is_zero(at: i32) -> bool {
    at == 0
}

impl Asm {
    /// `ldr to, [from, #at]` of 32 bits; `at` a multiple of 4 below 16 KiB.
    #[inline]
    pub fn load32(&mut self, to: Reg, from: Reg, at: u32) {
        self.word(0xB940_0000 | (at / 4) << 10 | from << 5 | to);
    }
    /// `ldr to, [from]`
    #[inline]
    pub fn load(&mut self, to: Reg, from: Reg) {
        self.word(0xF940_0000 | from << 5 | to);
    }
    /// `str from, [to, #at]`; `at` a multiple of 8 below 32 KiB.
    #[inline]
    pub fn store(&mut self, from: Reg, to: Reg, at: u32) {
        self.word(0xF900_0000 | (at / 8) << 10 | to << 5 | from);
    }
    /// `stadd what, [to]` (FEAT_LSE).
    #[inline]
    pub fn add_atomic(&mut self, what: Reg, to: Reg) {
        self.word(0xF820_001F | what << 16 | to << 5);
    }
    #[inline]
    pub fn load_exclusive(&mut self, to: Reg, from: Reg) {
        self.word(0xC85F_7C00 | from << 5 | to);
    }
    /// `ldaxrb to, [from]`: later accesses are not seen before it.
    #[inline]
    pub fn load_exclusive_byte(&mut self, to: Reg, from: Reg) {
        self.word(0x085F_FC00 | from << 5 | to);
    }
    /// `stxrb failed, from, [to]`
    #[inline]
    pub fn store_exclusive_byte(&mut self, failed: Reg, from: Reg, to: Reg) {
        self.word(0x0800_7C00 | failed << 16 | to << 5 | from);
    }
    /// `stlrb from, [to]`: earlier accesses are not seen after it.
    #[inline]
    pub fn store_release_byte(&mut self, from: Reg, to: Reg) {
        self.word(0x089F_FC00 | to << 5 | from);
    }
    /// `str from, [to]` of 32 bits.
    #[inline]
    pub fn store32(&mut self, from: Reg, to: Reg) {
        self.word(0xB900_0000 | to << 5 | from);
    }
    #[inline]
    pub fn store_exclusive(&mut self, failed: Reg, from: Reg, to: Reg) {
        self.word(0xC800_7C00 | failed << 16 | to << 5 | from);
    }
    /// `stp a, b, [sp, #at]`; `at` a multiple of 8 below 512.
    #[inline]
    pub fn store_pair(&mut self, a: Reg, b: Reg, at: u32) {
        self.word(0xA900_0000 | (at / 8) << 15 | b << 10 | SP << 5 | a);
    }
    /// `ldr to, [sp, #at]`; `at` a multiple of 8 below 32 KiB.
    #[inline]
    pub fn load_from_stack(&mut self, to: Reg, at: u32) {
        self.word(0xF940_0000 | (at / 8) << 10 | SP << 5 | to);
    }
    /// `stp a, b, [sp, #-16]!`
    #[inline]
    pub fn push_pair(&mut self, a: Reg, b: Reg) {
        self.word(0xA9BF_0000 | b << 10 | SP << 5 | a);
    }
    /// `ldp a, b, [sp], #16`
    #[inline]
    pub fn pop_pair(&mut self, a: Reg, b: Reg) {
        self.word(0xA8C1_0000 | b << 10 | SP << 5 | a);
    }
    /// `ldr to, [from, #at]`; `at` a multiple of 8 below 32 KiB.
    #[inline]
    pub fn load_at(&mut self, to: Reg, from: Reg, at: u32) {
        self.word(0xF940_0000 | (at / 8) << 10 | from << 5 | to);
    }
    /// `ldr to, [from, index, lsl #3]`
    #[inline]
    pub fn load_nth(&mut self, to: Reg, from: Reg, index: Reg) {
        self.word(0xF860_7800 | index << 16 | from << 5 | to);
    }
    /// `stp a, b, [to, #at]`; `at` a multiple of 8 below 512.
    #[inline]
    pub fn store_two(&mut self, a: Reg, b: Reg, to: Reg, at: u32) {
        self.word(0xA900_0000 | (at / 8) << 15 | b << 10 | to << 5 | a);
    }
    /// `ldp a, b, [from, #at]`; `at` as above.
    #[inline]
    pub fn load_two(&mut self, a: Reg, b: Reg, from: Reg, at: u32) {
        self.word(0xA940_0000 | (at / 8) << 15 | b << 10 | from << 5 | a);
    }
    /// `[to] = [to] + value`, or what else `how` is, by an atomic access. Without FEAT_LSE it uses the two
    /// scratch registers, and flags for a maximum.
    #[inline]
    pub fn update(&mut self, lse: bool, how: Update, value: Reg, to: Reg, scratch: [Reg; 2]) {
        if lse {
            // stadd, stumax, stset.
            let opcode = match how {
                Update::Add => 0xF820_001F,
                Update::Max => 0xF820_601F,
                Update::Or => 0xF820_301F,
            };
            self.word(opcode | value << 16 | to << 5);
            return;
        }
        let [new, failed] = scratch;
        let again = self.here();
        self.load_exclusive(new, to);
        match how {
            Update::Add => self.add(new, new, value),
            Update::Or => self.or(new, new, value),
            Update::Max => {
                self.compare(new, value);
                self.select(new, new, value, Cond::Above);
            }
        }
        self.store_exclusive(failed, new, to);
        self.unless_zero(failed, again);
    }
    /// `ldar to, [from]`: later accesses are not seen before it.
    #[inline]
    pub fn load_acquire(&mut self, to: Reg, from: Reg) {
        self.word(0xC8DF_FC00 | from << 5 | to);
    }
    /// `dmb ishld`: earlier loads are done before all later accesses.
    #[inline]
    pub fn order_loads(&mut self) {
        self.word(0xD503_39BF);
    }
    /// `dmb ishst`: earlier stores are seen before all later ones.
    #[inline]
    pub fn order_stores(&mut self) {
        self.word(0xD503_3ABF);
    }
    /// `ldr to, [from, #at]`, or `ldur` for offsets from -256 on that are no multiples of 8.
    #[inline]
    pub fn load_word(&mut self, to: Reg, from: Reg, at: i32) {
        self.at_offset(0xF840_0000, at, from, to);
    }
    /// `str from, [to, #at]`, or `stur`.
    #[inline]
    pub fn store_word(&mut self, from: Reg, to: Reg, at: i32) {
        self.at_offset(0xF800_0000, at, to, from);
    }
    #[inline]
    fn at_offset(&mut self, opcode: u32, at: i32, base: Reg, reg: Reg) {
        let operands = base << 5 | reg;
        if at >= 0 && at % 8 == 0 {
            self.require(at < 1 << 15);
            return self.word(opcode | 1 << 24 | ((at as u32 / 8) & 0xFFF) << 10 | operands);
        }
        self.require((-256..256).contains(&at));
        self.word(opcode | (at.cast_unsigned() & 0x1FF) << 12 | operands);
    }
    /// `ldrb to, [from, #at]`, zero-extended; `at` from 0 to 4095.
    #[inline]
    pub fn load_byte_at(&mut self, to: Reg, from: Reg, at: i32) {
        self.require((0..4096).contains(&at));
        self.word(0x3940_0000 | (at as u32 & 0xFFF) << 10 | from << 5 | to);
    }
    /// `strb from, [to, #at]`; `at` as above.
    #[inline]
    pub fn store_byte_at(&mut self, from: Reg, to: Reg, at: i32) {
        self.require((0..4096).contains(&at));
        self.word(0x3900_0000 | (at as u32 & 0xFFF) << 10 | to << 5 | from);
    }
    /// `(old, [to]) = ([to], [to] + value)`, by an atomic access. Without FEAT_LSE it uses the scratch
    /// registers.
    #[inline]
    pub fn fetch_add(&mut self, lse: bool, old: Reg, value: Reg, to: Reg, [new, failed]: [Reg; 2]) {
        if lse {
            return self.word(0xF820_0000 | value << 16 | to << 5 | old);
        }
        let again = self.here();
        self.load_exclusive(old, to);
        self.add(new, old, value);
        self.store_exclusive(failed, new, to);
        self.unless_zero(failed, again);
    }
    /// `stlr from, [to]`: earlier stores are seen before it.
    #[inline]
    pub fn store_release(&mut self, from: Reg, to: Reg) {
        self.word(0xC89F_FC00 | to << 5 | from);
    }
    /// `casa old, new, [at]` (FEAT_LSE): `old` gets the previous value.
    #[inline]
    pub fn compare_swap(&mut self, old: Reg, new: Reg, at: Reg) {
        self.word(0xC8E0_7C00 | old << 16 | at << 5 | new);
    }
    /// `ldaxr to, [from]`
    #[inline]
    pub fn load_exclusive_acquire(&mut self, to: Reg, from: Reg) {
        self.word(0xC85F_FC00 | from << 5 | to);
    }
    /// `ldr to, [from, past]`
    #[inline]
    pub fn load_past(&mut self, to: Reg, from: Reg, past: Reg) {
        self.word(0xF860_6800 | past << 16 | from << 5 | to);
    }
    /// `ldrb to, [from, past]`, zero-extended
    #[inline]
    pub fn load_byte(&mut self, to: Reg, from: Reg, past: Reg) {
        self.word(0x3860_6800 | past << 16 | from << 5 | to);
    }
    /// `strb from, [to, past]`
    #[inline]
    pub fn store_byte(&mut self, from: Reg, to: Reg, past: Reg) {
        self.word(0x3820_6800 | past << 16 | to << 5 | from);
    }
    /// `str from, [to, past]`
    #[inline]
    pub fn store_past(&mut self, from: Reg, to: Reg, past: Reg) {
        self.word(0xF820_6800 | past << 16 | to << 5 | from);
    }
    /// `str d<vector>, [to, #at]`; `at` a multiple of 8 below 32 KiB.
    #[inline]
    pub fn store_vector(&mut self, vector: u32, to: Reg, at: u32) {
        self.word(0xFD00_0000 | (at / 8) << 10 | to << 5 | vector);
    }
    /// `fmov to, dN`: the low half of a vector register.
    #[inline]
    pub fn load_of_vector(&mut self, to: Reg, vector: u32) {
        self.word(0x9E66_0000 | vector << 5 | to);
    }
}
