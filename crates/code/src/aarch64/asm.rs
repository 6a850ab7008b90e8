//! Assembles the words of a stub, one after another. `access` adds the instructions that read and write
//! memory, `arithmetic` those that compute.
//!
//! In: instructions with their operands; places in the code that are bound later. Out: words. If an operand
//! does not fit its form, this is noted, and there is no code in the end. Registers are numbers; 31 is sp or
//! zero, depending on the instruction. Encodings: Arm ARM C6.2.
#![allow(missing_docs, reason = "a name without a sentence is its instruction's")]

use trapline_insn::aarch64::encode;

use crate::unsound::NoCode;

/// A general register.
pub type Reg = u32;
pub const SP: Reg = 31;
pub const ZERO: Reg = 31;

/// When a branch is taken (Arm ARM C1.2.4) after a comparison; of unsigned numbers unless noted.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Cond {
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
pub enum Update {
    Add,
    /// The unsigned maximum of both.
    Max,
    /// Bits that either has.
    Or,
}

/// A word that refers to a place which is bound later.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Fix(usize);

impl Fix {
    /// The same so many words further on.
    pub(super) const fn moved(self, by: usize) -> Self {
        Self(self.0.wrapping_add(by))
    }
}

/// Code under construction.
#[derive(Clone, Debug)]
pub struct Asm {
    words: Vec<u32>,
    origin: u64,
    /// Constants that lie behind the code, each with the words that load it.
    constants: Vec<(u64, Vec<Fix>)>,
    /// Some distance was too long for its form.
    broken: bool,
    /// Why something that belongs here is missing.
    lacks: Option<NoCode>,
}

/// Why there are no words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoWords {
    /// Something is out of an instruction's reach.
    #[error("out of an instruction's reach")]
    Far,
    /// A program has no code.
    #[error(transparent)]
    NoCode(#[from] NoCode),
}

impl Asm {
    #[inline]
    pub const fn new(origin: u64) -> Self {
        Self { words: Vec::new(), origin, constants: Vec::new(), broken: false, lacks: None }
    }
    /// Address of the next word.
    #[inline]
    pub const fn here(&self) -> u64 {
        self.origin.wrapping_add(4 * self.words.len() as u64)
    }
    /// # Errors
    /// Why there are none.
    #[inline]
    pub fn words(self) -> Result<Vec<u32>, NoWords> {
        match self.lacks {
            Some(why) => Err(why.into()),
            None if self.broken => Err(NoWords::Far),
            None => Ok(self.words),
        }
    }
    /// Notes that a program has no code here.
    #[cold]
    pub const fn lack(&mut self, why: NoCode) {
        self.lacks = Some(why);
    }
    #[inline]
    pub fn word(&mut self, word: u32) {
        self.words.push(word);
    }
    #[inline]
    pub fn double(&mut self, value: u64) {
        self.words.extend([value as u32, (value >> 32) as u32]);
    }
    #[inline]
    pub fn align(&mut self, to: u64) {
        while !self.here().is_multiple_of(to) {
            self.word(encode::NOP);
        }
    }
    /// Notes whether an operand fits its form.
    #[inline]
    pub fn require(&mut self, fits: bool) {
        self.broken |= !fits;
    }
    #[inline]
    pub fn push(&mut self, word: Option<u32>) {
        self.broken |= word.is_none();
        self.word(word.unwrap_or(encode::BRK));
    }
    #[inline]
    pub fn later(&mut self, word: u32) -> Fix {
        self.word(word);
        Fix(self.words.len() - 1)
    }
    /// Makes `fix` refer to this place.
    #[inline]
    pub fn bind(&mut self, fix: Fix) {
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
    #[inline]
    pub fn b(&mut self, to: u64) {
        self.push(encode::b(self.here(), to));
    }
    #[inline]
    pub fn adr_later(&mut self, to: Reg) -> Fix {
        self.later(0x1000_0000 | to)
    }
    /// `ldr to, literal`
    #[inline]
    pub fn literal_later(&mut self, to: Reg) -> Fix {
        self.later(0x5800_0000 | to)
    }
    /// Branches if bit 31 is set.
    #[inline]
    pub fn if_negative_later(&mut self, of: Reg) -> Fix {
        self.later(0x37F8_0000 | of)
    }
    /// Branches if bit 31 is clear.
    #[inline]
    pub fn unless_negative_later(&mut self, of: Reg) -> Fix {
        self.later(0x36F8_0000 | of)
    }
    /// `cbnz of, to`, 32 bits.
    #[inline]
    pub fn unless_zero(&mut self, of: Reg, to: u64) {
        self.push(encode::with_imm19(0x3500_0000 | of, self.here(), to));
    }
    #[inline]
    pub fn thread_pointer(&mut self, to: Reg) {
        self.word(0xD53B_D040 | to);
    }
    /// `blr to`
    #[inline]
    pub fn call(&mut self, to: Reg) {
        self.word(0xD63F_0000 | to << 5);
    }
    /// `to` = any number, which lies behind the code ([`Asm::pool`]).
    #[inline]
    pub fn constant(&mut self, to: Reg, value: u64) {
        let fix = self.literal_later(to);
        self.constant_at(value, fix);
    }
    /// Makes a word load a number that lies behind the code.
    #[inline]
    pub(super) fn constant_at(&mut self, value: u64, fix: Fix) {
        match self.constants.iter_mut().find(|constant| constant.0 == value) {
            Some(constant) => constant.1.push(fix),
            None => self.constants.push((value, vec![fix])),
        }
    }
    /// The constants that words from the number `begin` on load, with these words.
    pub(super) fn constants_since(&self, begin: usize) -> impl Iterator<Item = (u64, Fix)> {
        let each = self.constants.iter().flat_map(|(value, fixes)| fixes.iter().map(|fix| (*value, *fix)));
        each.filter(move |(_, fix)| fix.0 >= begin)
    }
    /// The number of the word at an address.
    pub(super) const fn number_of(&self, address: u64) -> usize {
        (address.wrapping_sub(self.origin) / 4) as usize
    }
    /// Appends words.
    pub(super) fn extend(&mut self, words: &[u32]) {
        self.words.extend_from_slice(words);
    }
    /// The words from a number on.
    pub(super) fn since(&self, begin: usize) -> &[u32] {
        &self.words[begin..]
    }
    /// Appends the constants, behind code that does not run on.
    #[inline]
    pub fn pool(&mut self) {
        self.align(8);
        for (value, fixes) in core::mem::take(&mut self.constants) {
            fixes.into_iter().for_each(|fix| self.bind(fix));
            self.double(value);
        }
    }
    #[inline]
    pub fn b_later(&mut self) -> Fix {
        self.later(0x1400_0000)
    }
    #[inline]
    pub fn if_later(&mut self, cond: Cond) -> Fix {
        self.later(0x5400_0000 | cond as u32)
    }
    #[inline]
    pub fn if_to(&mut self, cond: Cond, to: u64) {
        self.push(encode::with_imm19(0x5400_0000 | cond as u32, self.here(), to));
    }
    /// `cbz of`, 64 bits.
    #[inline]
    pub fn if_zero_later(&mut self, of: Reg) -> Fix {
        self.later(0xB400_0000 | of)
    }
    /// `cbnz of`, 64 bits.
    #[inline]
    pub fn unless_zero_later(&mut self, of: Reg) -> Fix {
        self.later(0xB500_0000 | of)
    }
    #[inline]
    pub fn flags(&mut self, to: Reg) {
        self.word(0xD53B_4200 | to);
    }
    #[inline]
    pub fn set_flags(&mut self, from: Reg) {
        self.word(0xD51B_4200 | from);
    }
    /// `mrs to, cntvct_el0`
    #[inline]
    pub fn clock(&mut self, to: Reg) {
        self.word(0xD53B_E040 | to);
    }
    /// Branches if bit 63 is set.
    #[inline]
    pub fn if_sign_later(&mut self, of: Reg) -> Fix {
        self.later(0xB7F8_0000 | of)
    }
    /// Branches if bit 63 is clear.
    #[inline]
    pub fn unless_sign_later(&mut self, of: Reg) -> Fix {
        self.later(0xB6F8_0000 | of)
    }
    /// Branches if bit `bit`, below 32, is set.
    #[inline]
    pub fn if_bit_later(&mut self, of: Reg, bit: u32) -> Fix {
        self.later(0x3700_0000 | (bit & 31) << 19 | of)
    }
    /// `xpaclri`: removes the signature from x30. It has no effect if there is none, or if the processor has
    /// no such feature.
    #[inline]
    pub fn strip_link(&mut self) {
        self.word(0xD503_20FF);
    }
    /// `svc #0`: of the general registers, the kernel overwrites only x0.
    #[inline]
    pub fn system_call(&mut self) {
        self.word(0xD400_0001);
    }
    /// `isb`: takes some ten cycles, in which the thread does nothing.
    #[inline]
    pub fn pause(&mut self) {
        self.word(0xD503_3FDF);
    }
    /// `mov to, sp`
    #[inline]
    pub fn stack_pointer(&mut self, to: Reg) {
        self.word(0x9100_03E0 | to);
    }
}
