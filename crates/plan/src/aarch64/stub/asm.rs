//! Assembles the words of a stub, one after another.
//!
//! In: instructions with their operands; places in the code that are bound later. Out: words. If an operand
//! does not fit its form, this is noted, and there is no code in the end. Registers are numbers; 31 is sp or
//! zero, depending on the instruction. Encodings: Arm ARM C6.2.

use trapline_insn::aarch64::{Gpr, encode};

/// A general register.
pub(super) type Reg = u32;
pub(super) const SP: Reg = 31;
pub(super) const ZERO: Reg = 31;

/// When a branch is taken (Arm ARM C1.2.4) after a comparison; of unsigned numbers unless noted.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum Cond {
    Equal = 0,
    NotEqual = 1,
    AboveEq = 2,
    Below = 3,
    /// The number is negative, after a comparison with 0.
    Negative = 4,
    Above = 8,
    BelowEq = 9,
    /// The rest are for signed numbers.
    GreaterEq = 10,
    Less = 11,
    Greater = 12,
    LessEq = 13,
}

/// How one access changes a word in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Update {
    Add,
    /// The unsigned maximum of both.
    Max,
}

/// A word that refers to a place which is bound later.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(super) struct Fix(usize);

/// Code under construction.
#[derive(Clone, Debug)]
pub(super) struct Asm {
    words: Vec<u32>,
    origin: u64,
    /// Constants that lie behind the code, each with the words that load it.
    constants: Vec<(u64, Vec<Fix>)>,
    /// Some distance was too long for its form.
    broken: bool,
}

impl Asm {
    pub(super) const fn new(origin: u64) -> Self {
        Self { words: Vec::new(), origin, constants: Vec::new(), broken: false }
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
    pub(super) fn later(&mut self, word: u32) -> Fix {
        self.word(word);
        Fix(self.words.len() - 1)
    }
    /// Makes `fix` refer to this place.
    pub(super) fn bind(&mut self, fix: Fix) {
        let (from, to) = (self.origin.wrapping_add(4 * fix.0 as u64), self.here());
        let Some(word) = self.words.get_mut(fix.0) else { return };
        let distance = to.wrapping_sub(from);
        let bound = match *word >> 24 {
            // b: 26 bits.
            0x14 => {
                *word |= distance as u32 >> 2 & 0x03FF_FFFF;
                1 << 27
            }
            // tbz, tbnz: 14 bits.
            0x36 | 0x37 | 0xB6 | 0xB7 => {
                *word |= (distance as u32 >> 2 & 0x3FFF) << 5;
                1 << 15
            }
            // adr: 21 bits.
            0x10 => {
                *word |= (distance as u32 >> 2 & 0x7_FFFF) << 5;
                1 << 20
            }
            // Literals, b.cond, cbz, cbnz: 19 bits.
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
    /// `to` = 64 times its low half, signed.
    pub(super) fn lines(&mut self, to: Reg) {
        self.word(0x937A_7C00 | to << 5 | to);
    }
    pub(super) fn add(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x8B00_0000 | b << 16 | a << 5 | to);
    }
    /// `to` = `len` bits of `of`, from bit `at` on.
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
    /// `ldaxrb to, [from]`: later accesses are not seen before it.
    pub(super) fn load_exclusive_byte(&mut self, to: Reg, from: Reg) {
        self.word(0x085F_FC00 | from << 5 | to);
    }
    /// `stxrb failed, from, [to]`
    pub(super) fn store_exclusive_byte(&mut self, failed: Reg, from: Reg, to: Reg) {
        self.word(0x0800_7C00 | failed << 16 | to << 5 | from);
    }
    /// `stlrb from, [to]`: earlier accesses are not seen after it.
    pub(super) fn store_release_byte(&mut self, from: Reg, to: Reg) {
        self.word(0x089F_FC00 | to << 5 | from);
    }
    /// `str from, [to]` of 32 bits.
    pub(super) fn store32(&mut self, from: Reg, to: Reg) {
        self.word(0xB900_0000 | to << 5 | from);
    }
    pub(super) fn reverse_bits(&mut self, to: Reg, of: Reg) {
        self.word(0xDAC0_0000 | of << 5 | to);
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
    /// `to` = any number, which lies behind the code ([`Asm::pool`]).
    pub(super) fn constant(&mut self, to: Reg, value: u64) {
        let fix = self.literal_later(to);
        match self.constants.iter_mut().find(|constant| constant.0 == value) {
            Some(constant) => constant.1.push(fix),
            None => self.constants.push((value, vec![fix])),
        }
    }
    /// Appends the constants, behind code that does not run on.
    pub(super) fn pool(&mut self) {
        self.align(8);
        for (value, fixes) in core::mem::take(&mut self.constants) {
            fixes.into_iter().for_each(|fix| self.bind(fix));
            self.double(value);
        }
    }
    /// `to` = a number of 32 bits.
    pub(super) fn number(&mut self, to: Reg, value: u32) {
        self.word(encode::movz(Gpr::field(to, 0), value as u16, 0));
        if value >> 16 != 0 {
            self.word(encode::movk(Gpr::field(to, 0), (value >> 16) as u16, 1));
        }
    }
    pub(super) fn b_later(&mut self) -> Fix {
        self.later(0x1400_0000)
    }
    pub(super) fn if_later(&mut self, cond: Cond) -> Fix {
        self.later(0x5400_0000 | cond as u32)
    }
    pub(super) fn if_to(&mut self, cond: Cond, to: u64) {
        self.push(encode::with_imm19(0x5400_0000 | cond as u32, self.here(), to));
    }
    /// `cbz of`, 64 bits.
    pub(super) fn if_zero_later(&mut self, of: Reg) -> Fix {
        self.later(0xB400_0000 | of)
    }
    /// `cbnz of`, 64 bits.
    pub(super) fn unless_zero_later(&mut self, of: Reg) -> Fix {
        self.later(0xB500_0000 | of)
    }
    /// `cmp a, b`
    pub(super) fn compare(&mut self, a: Reg, b: Reg) {
        self.subs(ZERO, a, b);
    }
    /// `subs to, a, b`
    pub(super) fn subs(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xEB00_0000 | b << 16 | a << 5 | to);
    }
    pub(super) fn sub(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xCB00_0000 | b << 16 | a << 5 | to);
    }
    /// `add to, a, b, lsl #shift`
    pub(super) fn add_shifted(&mut self, to: Reg, a: Reg, b: Reg, shift: u32) {
        self.word(0x8B00_0000 | b << 16 | (shift & 63) << 10 | a << 5 | to);
    }
    pub(super) fn or(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xAA00_0000 | b << 16 | a << 5 | to);
    }
    /// `mvn to, of`
    pub(super) fn not(&mut self, to: Reg, of: Reg) {
        self.word(0xAA20_03E0 | of << 16 | to);
    }
    /// `mov to, from`; 31 is zero.
    pub(super) fn mov(&mut self, to: Reg, from: Reg) {
        self.or(to, ZERO, from);
    }
    /// `csel to, a, b, cond`
    pub(super) fn select(&mut self, to: Reg, a: Reg, b: Reg, cond: Cond) {
        self.word(0x9A80_0000 | b << 16 | (cond as u32) << 12 | a << 5 | to);
    }
    /// The product of the low halves, 32 bits.
    pub(super) fn mul32(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x1B00_7C00 | b << 16 | a << 5 | to);
    }
    /// `madd to, a, b, plus`
    pub(super) fn mul_add(&mut self, to: Reg, a: Reg, b: Reg, plus: Reg) {
        self.word(0x9B00_0000 | b << 16 | plus << 10 | a << 5 | to);
    }
    pub(super) fn div(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x9AC0_0800 | b << 16 | a << 5 | to);
    }
    /// `lsr to, of, by`
    pub(super) fn shift_right(&mut self, to: Reg, of: Reg, by: Reg) {
        self.word(0x9AC0_2400 | by << 16 | of << 5 | to);
    }
    pub(super) fn leading_zeros(&mut self, to: Reg, of: Reg) {
        self.word(0xDAC0_1000 | of << 5 | to);
    }
    /// `ldr to, [from, #at]`; `at` a multiple of 8 below 32 KiB.
    pub(super) fn load_at(&mut self, to: Reg, from: Reg, at: u32) {
        self.word(0xF940_0000 | (at / 8) << 10 | from << 5 | to);
    }
    /// `ldr to, [from, index, lsl #3]`
    pub(super) fn load_nth(&mut self, to: Reg, from: Reg, index: Reg) {
        self.word(0xF860_7800 | index << 16 | from << 5 | to);
    }
    /// `stp a, b, [to, #at]`; `at` a multiple of 8 below 512.
    pub(super) fn store_two(&mut self, a: Reg, b: Reg, to: Reg, at: u32) {
        self.word(0xA900_0000 | (at / 8) << 15 | b << 10 | to << 5 | a);
    }
    /// `ldp a, b, [from, #at]`; `at` as above.
    pub(super) fn load_two(&mut self, a: Reg, b: Reg, from: Reg, at: u32) {
        self.word(0xA940_0000 | (at / 8) << 15 | b << 10 | from << 5 | a);
    }
    pub(super) fn flags(&mut self, to: Reg) {
        self.word(0xD53B_4200 | to);
    }
    pub(super) fn set_flags(&mut self, from: Reg) {
        self.word(0xD51B_4200 | from);
    }
    /// `mrs to, cntvct_el0`
    pub(super) fn clock(&mut self, to: Reg) {
        self.word(0xD53B_E040 | to);
    }
    /// Updates the word at `[to]` with `value`, by an atomic access. Spoils the two scratch registers and,
    /// without FEAT_LSE, flags.
    pub(super) fn update(&mut self, lse: bool, how: Update, value: Reg, to: Reg, scratch: [Reg; 2]) {
        if lse {
            // stadd, stumax.
            let opcode = match how {
                Update::Add => 0xF820_001F,
                Update::Max => 0xF820_601F,
            };
            self.word(opcode | value << 16 | to << 5);
            return;
        }
        let [new, failed] = scratch;
        let again = self.here();
        self.load_exclusive(new, to);
        match how {
            Update::Add => self.add(new, new, value),
            Update::Max => {
                self.compare(new, value);
                self.select(new, new, value, Cond::Above);
            }
        }
        self.store_exclusive(failed, new, to);
        self.unless_zero(failed, again);
    }
    /// Branches if bit 63 is set.
    pub(super) fn if_sign_later(&mut self, of: Reg) -> Fix {
        self.later(0xB7F8_0000 | of)
    }
    /// Branches if bit 63 is clear.
    pub(super) fn unless_sign_later(&mut self, of: Reg) -> Fix {
        self.later(0xB6F8_0000 | of)
    }
    pub(super) fn and(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x8A00_0000 | b << 16 | a << 5 | to);
    }
    pub(super) fn xor(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0xCA00_0000 | b << 16 | a << 5 | to);
    }
    /// `orr to, a, b, lsl #shift`
    pub(super) fn or_shifted(&mut self, to: Reg, a: Reg, b: Reg, shift: u32) {
        self.word(0xAA00_0000 | b << 16 | (shift & 63) << 10 | a << 5 | to);
    }
    pub(super) fn negate(&mut self, to: Reg, of: Reg) {
        self.sub(to, ZERO, of);
    }
    pub(super) fn multiply(&mut self, to: Reg, a: Reg, b: Reg) {
        self.mul_add(to, a, b, ZERO);
    }
    /// `sdiv to, a, b`
    pub(super) fn divide_signed(&mut self, to: Reg, a: Reg, b: Reg) {
        self.word(0x9AC0_0C00 | b << 16 | a << 5 | to);
    }
    /// `msub to, a, b, from`: `from` minus the product.
    pub(super) fn mul_sub(&mut self, to: Reg, a: Reg, b: Reg, from: Reg) {
        self.word(0x9B00_8000 | b << 16 | from << 10 | a << 5 | to);
    }
    /// `to` = the low `len` bits of `of`, as a signed number.
    pub(super) fn signed_bits(&mut self, to: Reg, of: Reg, len: u32) {
        self.word(0x9340_0000 | ((len - 1) & 63) << 10 | of << 5 | to);
    }
    /// `lsl to, of, #by`, by less than 64.
    pub(super) fn shift_left_by(&mut self, to: Reg, of: Reg, by: u32) {
        self.word(0xD340_0000 | ((64 - by) & 63) << 16 | ((63 - by) & 63) << 10 | of << 5 | to);
    }
    /// `lsr to, of, #by`, by less than 64.
    pub(super) fn shift_right_by(&mut self, to: Reg, of: Reg, by: u32) {
        self.word(0xD340_FC00 | (by & 63) << 16 | of << 5 | to);
    }
    /// `asr to, of, #by`, by less than 64.
    pub(super) fn shift_signed_by(&mut self, to: Reg, of: Reg, by: u32) {
        self.word(0x9340_FC00 | (by & 63) << 16 | of << 5 | to);
    }
    /// `fmov to, dN`: the low 64 bits of a vector register, which stays as it is.
    pub(super) fn vector_to(&mut self, to: Reg, vector: u32) {
        self.word(0x9E66_0000 | (vector & 31) << 5 | to);
    }
    /// `ldar to, [from]`: later accesses are not seen before it.
    pub(super) fn load_acquire(&mut self, to: Reg, from: Reg) {
        self.word(0xC8DF_FC00 | from << 5 | to);
    }
    /// `ldur to, [from, #-8]`
    pub(super) fn load_before(&mut self, to: Reg, from: Reg) {
        self.word(0xF85F_8000 | from << 5 | to);
    }
    /// `stur from, [to, #-8]`
    pub(super) fn store_before(&mut self, from: Reg, to: Reg) {
        self.word(0xF81F_8000 | to << 5 | from);
    }
    /// Adds `value` to the word at `[to]` by an atomic access; `old` gets the previous value. Without
    /// FEAT_LSE it spoils the scratch registers.
    pub(super) fn fetch_add(&mut self, lse: bool, old: Reg, value: Reg, to: Reg, [new, failed]: [Reg; 2]) {
        if lse {
            return self.word(0xF820_0000 | value << 16 | to << 5 | old);
        }
        let again = self.here();
        self.load_exclusive(old, to);
        self.add(new, old, value);
        self.store_exclusive(failed, new, to);
        self.unless_zero(failed, again);
    }
}
