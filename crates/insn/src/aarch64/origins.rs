//! Where the general registers' values at the end of a stretch of code come from.
//!
//! In: the words of a stretch that runs from its first word to its last. Out: an [`Origin`] for each register.
//! Invariant: ORG-1 (`x86_64::origins`): an origin that is known has the low 32 bits of the register's value.
//! Does not: follow calls and jumps. The caller knows that nothing jumps into the stretch. Sections are those
//! of the Arm ARM (DDI 0487).
//!
//! Words of which it is not known here what they write end a stretch: ordered and exclusive accesses, vector
//! structures, tags, SVE and SME.

use super::decode::decode;
use super::gpr::Gpr;
use super::verdict::{Op, Verdict};
use crate::origin::Origin;

/// The origins of all general registers.
#[derive(Clone, Debug)]
pub struct Origins {
    of: [Origin; 31],
    /// Bytes by which the stack pointer is lower than at the beginning.
    lowered: i32,
    /// Memory was written, maybe where a later load reads.
    wrote: bool,
}

/// `len` bits from bit `at` on.
const fn bits(word: u32, at: u32, len: u32) -> u32 {
    word >> at & ((1 << len) - 1)
}

/// The same, sign-extended.
const fn signed(word: u32, at: u32, len: u32) -> i32 {
    (word << (32 - at - len)).cast_signed() >> (32 - len)
}

const fn is_set(word: u32, at: u32) -> bool {
    word >> at & 1 == 1
}

/// A constant that its low 32 bits stand for, sign-extended or not.
fn constant(value: u64) -> Origin {
    let short = u32::try_from(value).is_ok() || i32::try_from(value.cast_signed()).is_ok();
    if short { Origin::Constant(value as u32) } else { Origin::Unknown }
}

/// The immediate of a logical instruction: a run of ones, rotated and repeated (`DecodeBitMasks`).
fn pattern(word: u32) -> Option<u64> {
    let (wide, n, rotate, ones) = (is_set(word, 31), bits(word, 22, 1), bits(word, 16, 6), bits(word, 10, 6));
    let log = (n << 6 | !ones & 0x3F).checked_ilog2().filter(|log| *log > 0 && (wide || *log < 6))?;
    let size = 1 << log;
    let run = u64::MAX >> (63 - ones % size);
    let element = u64::MAX >> (64 - size);
    let (right, left) = (rotate % size, (size - rotate % size) % 64);
    let rotated = (run >> right | run << left) & element;
    let repeated = (0..64 / size).fold(0, |all, nth| all | rotated << (nth * size));
    Some(if wide { repeated } else { repeated & u64::from(u32::MAX) })
}

impl Origins {
    /// Follows a stretch. `None` if it has a call or a jump that is always taken, or if the stack pointer is
    /// not known. A conditional jump in it is not taken.
    #[must_use]
    pub fn over(words: &[u32]) -> Option<Self> {
        let of = core::array::from_fn(|number| Origin::Register(number as u8));
        let mut origins = Self { of, lowered: 0, wrote: false };
        words.iter().try_for_each(|word| origins.step(*word))?;
        Some(origins)
    }
    /// The origin of a register's value. That of the stack pointer is not known.
    #[must_use]
    pub fn of(&self, register: Gpr) -> Origin {
        self.of.get(register.number() as usize).copied().unwrap_or_default()
    }
    /// The same where number 31 is zero.
    fn or_zero(&self, register: Gpr) -> Origin {
        if register.is_31() { Origin::Constant(0) } else { self.of(register) }
    }
    fn set(&mut self, register: Gpr, origin: Origin) {
        if let Some(of) = self.of.get_mut(register.number() as usize) {
            *of = origin;
        }
    }
    /// Adds to a register, or to the stack pointer, which is then lower.
    fn add(&mut self, to: Gpr, amount: i32) -> Option<()> {
        match to.is_31() {
            true => self.lowered = self.lowered.checked_sub(amount)?,
            false => self.set(to, Origin::Unknown),
        }
        Some(())
    }
    /// One word; cases are the groups of C4.1, bits 28 to 25.
    fn step(&mut self, word: u32) -> Option<()> {
        let verdict = decode(word);
        match bits(word, 25, 4) {
            _ if matches!(verdict, Verdict::Refuse(_)) => None,
            0b1000 | 0b1001 => self.immediate(word),
            0b1010 | 0b1011 => self.control(word, verdict),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => self.memory(word),
            0b0101 | 0b1101 => self.registers(word),
            // Vectors. Some of them write a general register.
            0b0111 | 0b1111 => {
                self.set(Gpr::field(word, 0), Origin::Unknown);
                Some(())
            }
            _ => None,
        }
    }
    /// Data processing with an immediate (C4.1.92).
    fn immediate(&mut self, word: u32) -> Option<()> {
        let (to, from) = (Gpr::field(word, 0), Gpr::field(word, 5));
        let (wide, operation) = (is_set(word, 31), bits(word, 29, 2));
        let origin = match bits(word, 23, 3) {
            // `add`, `sub`: the stack pointer is among their registers if they set no flags.
            0b010 if operation & 1 == 0 => {
                let amount = (bits(word, 10, 12) << (12 * bits(word, 22, 1))).cast_signed();
                match (to.is_31(), from.is_31()) {
                    (true, true) if wide => {
                        return self.add(to, if operation == 0 { amount } else { -amount });
                    }
                    (true, _) => return None,
                    (false, false) if amount == 0 => self.of(from),
                    (false, _) => Origin::Unknown,
                }
            }
            // Tags, small constants, logic without flags: number 31 is the stack pointer.
            0b011 if to.is_31() => return None,
            0b100 if to.is_31() && operation != 0b11 => return None,
            0b100 if operation == 0b01 && from.is_31() => pattern(word).map_or(Origin::Unknown, constant),
            0b101 => {
                let (half, shift) = (u64::from(bits(word, 5, 16)), 16 * bits(word, 21, 2));
                match (operation, self.of(to)) {
                    (0b00, _) if wide => constant(!(half << shift)),
                    (0b00, _) => constant(!(half << shift) & u64::from(u32::MAX)),
                    (0b10, _) => constant(half << shift),
                    (0b11, Origin::Constant(old)) if shift < 32 => {
                        Origin::Constant(old & !(0xFFFF << shift) | (half as u32) << shift)
                    }
                    _ => Origin::Unknown,
                }
            }
            // `sxtw`, and what keeps the low half.
            0b110 if operation != 0b01 && bits(word, 16, 6) == 0 && bits(word, 10, 6) == 31 => {
                self.or_zero(from)
            }
            _ => Origin::Unknown,
        };
        self.set(to, origin);
        Some(())
    }
    /// Branches and system instructions (C4.1.93).
    fn control(&mut self, word: u32, verdict: Verdict) -> Option<()> {
        match verdict {
            Verdict::Simulate(Op::BranchIf { .. } | Op::Nop) => {}
            Verdict::OutOfLine(_) if word >> 24 == 0xD5 => {
                // Reads of system registers.
                if is_set(word, 21) {
                    self.set(Gpr::field(word, 0), Origin::Unknown);
                }
                // Hints sign and authenticate these.
                if word & 0xFFFF_F01F == 0xD503_201F {
                    [Gpr::X17, Gpr::X30].into_iter().for_each(|register| self.set(register, Origin::Unknown));
                }
                // `dc zva`.
                self.wrote |= bits(word, 19, 2) == 1;
            }
            _ => return None,
        }
        Some(())
    }
    /// Data processing with registers (C4.1.95).
    fn registers(&mut self, word: u32) -> Option<()> {
        let to = Gpr::field(word, 0);
        match word {
            // `mov`.
            _ if word & 0x7FE0_FFE0 == 0x2A00_03E0 => self.set(to, self.or_zero(Gpr::field(word, 16))),
            // `add`, `sub` of an extended register: the stack pointer is among their registers.
            _ if word & 0x3FE0_0000 == 0x0B20_0000 && to.is_31() => return None,
            // `ccmp`, `ccmn` write flags alone.
            _ if word & 0x1FE0_0000 == 0x1A40_0000 => {}
            _ => self.set(to, Origin::Unknown),
        }
        Some(())
    }
    /// Loads and stores (C4.1.96).
    fn memory(&mut self, word: u32) -> Option<()> {
        match bits(word, 28, 2) {
            0b01 if word & 0x3B00_0000 == 0x1800_0000 => {
                if !is_set(word, 26) {
                    self.set(Gpr::field(word, 0), Origin::Unknown);
                }
                Some(())
            }
            0b10 => self.pair(word),
            0b11 => self.single(word),
            _ => None,
        }
    }
    fn pair(&mut self, word: u32) -> Option<()> {
        let (base, is_vector) = (Gpr::field(word, 5), is_set(word, 26));
        let bytes = if is_vector { 4 << bits(word, 30, 2) } else { 4 << bits(word, 31, 1) };
        let (amount, how) = (signed(word, 15, 7) * bytes, bits(word, 23, 2));
        let at = if how == 1 { 0 } else { amount };
        match (is_set(word, 22), is_vector) {
            (false, _) => self.wrote = true,
            (true, true) => {}
            (true, false) => {
                let both = [at, at + bytes].map(|at| self.loaded(base, at));
                self.set(Gpr::field(word, 0), both[0]);
                self.set(Gpr::field(word, 10), both[1]);
            }
        }
        if how & 1 == 1 { self.add(base, amount) } else { Some(()) }
    }
    fn single(&mut self, word: u32) -> Option<()> {
        let (to, base) = (Gpr::field(word, 0), Gpr::field(word, 5));
        let (size, is_vector) = (bits(word, 30, 2), is_set(word, 26));
        // Where it is, if that is known, and by how much the base moves.
        let (at, moves) = match (is_set(word, 24), is_set(word, 21), bits(word, 10, 2)) {
            (true, ..) => (Some((bits(word, 10, 12) << size).cast_signed()), None),
            (false, false, how) => {
                let amount = signed(word, 12, 9);
                (Some(if how == 1 { 0 } else { amount }), (how & 1 == 1).then_some(amount))
            }
            (false, true, 0b10) => (None, None),
            // Atomic accesses; of those with bit 15, `swp` and `ldapr`.
            (false, true, 0b00) if !is_set(word, 15) || matches!(bits(word, 12, 3), 0 | 4) => {
                self.wrote = true;
                self.set(to, Origin::Unknown);
                return Some(());
            }
            _ => return None,
        };
        match bits(word, 22, 2) {
            0 => self.wrote = true,
            2 if is_vector => self.wrote = true,
            _ if is_vector => {}
            _ => {
                let whole = at.filter(|_| size >= 2);
                self.set(to, whole.map_or(Origin::Unknown, |at| self.loaded(base, at)));
            }
        }
        moves.map_or(Some(()), |amount| self.add(base, amount))
    }
    /// The origin of what is loaded from the stack, or from a frame.
    fn loaded(&self, base: Gpr, at: i32) -> Origin {
        let is_frame = self.of(Gpr::X29) == Origin::Register(Gpr::X29.number() as u8);
        let memory = |offset| Origin::Memory { base: base.number() as u8, offset };
        match base {
            _ if self.wrote => Origin::Unknown,
            // Below the stack pointer is nothing (AAPCS64, 6.4.5).
            Gpr::R31 => at.checked_sub(self.lowered).filter(|at| *at >= 0).map_or(Origin::Unknown, memory),
            Gpr::X29 if is_frame => memory(at),
            _ => Origin::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Gpr, Origins};
    use crate::origin::Origin::{self, Constant, Memory, Register, Unknown};

    /// Origins of x8, x0 and x1.
    fn origins(words: &[u32]) -> Option<[Origin; 3]> {
        let origins = Origins::over(words)?;
        Some([Gpr::X8, Gpr::X0, Gpr::X1].map(|register| origins.of(register)))
    }

    #[test]
    fn copies_constants_and_words_of_the_stack_are_followed() {
        let unchanged = [Register(8), Register(0), Register(1)];
        assert_eq!(origins(&[]), Some(unchanged));
        let cases: [(&[u32], [Origin; 3]); 15] = [
            // sxtw x1, w0; mov x8, #167; mov w0, #26
            (&[0x9340_7C01, 0xD280_14E8, 0x5280_0340], [Constant(167), Constant(26), Register(0)]),
            // A C library's `syscall`: uxtw x8, w0 (mov w8, w0); mov x0, x1; mov x1, x2
            (&[0x2A00_03E8, 0xAA01_03E0, 0xAA02_03E1], [Register(0), Register(1), Register(2)]),
            // Go: ldr x8, [sp, #8]; ldr x0, [sp, #16]; ldp x1, x2, [sp, #24]
            (&[0xF940_07E8, 0xF940_0BE0, 0xA941_8BE1], [8, 16, 24].map(|offset| Memory { base: 31, offset })),
            // sub sp, sp, #32; ldr w8, [sp, #40]; mov x1, xzr
            (
                &[0xD100_83FF, 0xB940_2BE8, 0xAA1F_03E1],
                [Memory { base: 31, offset: 8 }, Register(0), Constant(0)],
            ),
            // sub sp, sp, #32; ldr x8, [sp, #24]: below the stack pointer at the beginning
            (&[0xD100_83FF, 0xF940_0FE8], [Unknown, Register(0), Register(1)]),
            // ldp x0, x1, [sp], #16; ldr x8, [sp]
            (&[0xA8C1_07E0, 0xF940_03E8], [16, 0, 8].map(|offset| Memory { base: 31, offset })),
            // ldur x0, [x29, #-8]; a load after a store is not known: str x0, [x29, #-8]; ldur x1, [x29, #-8]
            (
                &[0xF85F_83A0, 0xF81F_83A0, 0xF85F_83A1],
                [Register(8), Memory { base: 29, offset: -8 }, Unknown],
            ),
            // mov x29, sp; ldr x8, [x29, #16]
            (&[0x9100_03FD, 0xF940_0BA8], [Unknown, Register(0), Register(1)]),
            // add w0, w0, #1; adr x1, .; ldrb w8, [sp]
            (&[0x1100_0400, 0x1000_0001, 0x3940_03E8], [Unknown; 3]),
            // mov x8, #-1; mov w0, #0x10000; movk w0, #2; mov x1, #0x100000000
            (
                &[0x9280_0008, 0x52A0_0020, 0x7280_0040, 0xD2C0_0021],
                [Constant(u32::MAX), Constant(0x1_0002), Unknown],
            ),
            // mov w8, #-2; mov x0, #1; movk x0, #1, lsl #32; movk x1, #1
            (
                &[0x1280_0028, 0xD280_0020, 0xF2C0_0020, 0xF280_0021],
                [Constant(u32::MAX - 1), Unknown, Unknown],
            ),
            // Go: orr x8, xzr, #0x38; orr x0, xzr, #7; orr w1, wzr, #0xffffffc0
            (&[0xB27D_0BE8, 0xB240_0BE0, 0x321A_67E1], [Constant(0x38), Constant(7), Constant(0xFFFF_FFC0)]),
            // ldr x1, [x0]: nothing that may fault
            (&[0xF940_0001], [Register(8), Register(0), Unknown]),
            // ldadd x8, x0, [x1]; ldr x8, [sp]
            (&[0xF828_0020, 0xF940_03E8], [Unknown, Unknown, Register(1)]),
            // fmov x8, d0; cset x0, eq; ccmp x2, #0, #1, ne; mrs x1, tpidr_el0
            (&[0x9E66_0008, 0x9A9F_17E0, 0xFA40_1841, 0xD53B_D041], [Unknown; 3]),
        ];
        for (words, expected) in cases {
            assert_eq!(origins(words), Some(expected), "{words:x?}");
        }
    }

    #[test]
    fn calls_jumps_and_an_unknown_stack_pointer_end_a_stretch() {
        // bl; b; br x1; ret; svc; mov sp, x29; add sp, sp, x1; and sp, x1, #-16; ldxr x0, [x1]; ld1 {v0.16b}, [sp], #16;
        // cntd x0 (SVE); retaa
        let all = [
            0x9400_0000,
            0x1400_0001,
            0xD61F_0020,
            0xD65F_03C0,
            0xD400_0001,
            0x9100_03BF,
            0x8B21_63FF,
            0x927C_EC3F,
            0xC85F_7C20,
            0x4CDF_73E0,
            0x04E0_E3E0,
            0xD65F_0BFF,
        ];
        for word in all {
            assert_eq!(origins(&[word]), None, "{word:x}");
        }
        // cbz x0, 1f; b.eq 1f; nop; paciasp; tst x0, #1; cmp x0, x1
        let others = [0xB400_0040, 0x5400_0040, 0xD503_201F, 0xD503_233F, 0xF240_001F, 0xEB01_001F];
        assert_eq!(origins(&others), origins(&[]), "branches that are not taken, flags");
    }
}
