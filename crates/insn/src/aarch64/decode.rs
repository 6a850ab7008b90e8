//! What a probe can do with an A64 word: simulate it, run it elsewhere, or neither.
//!
//! In: a word. Out: a [`Verdict`], with the operands where they matter. Invariants: INSN-1; INSN-2 (an
//! unknown word is [`Verdict::Refuse`]). Only these groups of instructions depend on their own address:
//! branches, exceptions and system, `adr`, literal loads, and the forms of FEAT_PAuth_LR. All words of these
//! groups are distinguished here. Words of the other groups do the same at any address. So do those that are
//! not allocated: they are undefined at any address.
//! Does not: look at neighbours: see [`exclusive`](super::exclusive). Section numbers are those of the Arm
//! ARM (DDI 0487).

use super::gpr::Gpr;
use super::verdict::{Away, Cond, Literal, Op, Refusal, Test, Through, Vector, Verdict};

use Verdict::{OutOfLine, Refuse, Simulate};
const PLAIN: Verdict = OutOfLine(Away::Plain);

/// What can be done with `word`. Cases are the groups of the Arm ARM C4.1, bits 28 to 25.
#[must_use]
pub const fn decode(word: u32) -> Verdict {
    match word >> 25 & 0xF {
        0b1000 | 0b1001 => immediate(word),
        0b1010 | 0b1011 => control(word),
        0b0100 | 0b0110 | 0b1100 | 0b1110 => memory(word),
        // FEAT_PAuth_LR: paciasppc, pacnbiasppc, autiasppcr and their b-key forms.
        0b0101 | 0b1101 if word & 0xFFFF_C000 == 0xDAC1_8000 => Refuse(Refusal::SignsAddress),
        // Registers; floating point and vectors; SVE.
        0b0101 | 0b1101 | 0b0111 | 0b1111 | 0b0010 => PLAIN,
        // SME.
        0 if word >> 31 != 0 => PLAIN,
        0 if word >> 16 == 0 => Refuse(Refusal::Undefined),
        _ => Refuse(Refusal::Unallocated),
    }
}

/// Sign-extends the `len` bits from bit `at`.
const fn signed(word: u32, at: u32, len: u32) -> i32 {
    (word << (32 - at - len)).cast_signed() >> (32 - len)
}

/// Data processing with an immediate.
const fn immediate(word: u32) -> Verdict {
    let to = Gpr::field(word, 0);
    if word & 0x1F00_0000 == 0x1000_0000 {
        let pages = word >> 31 != 0;
        let value = (signed(word, 5, 19) as i64) << 2 | (word >> 29 & 3) as i64;
        return Simulate(Op::Address { to, offset: if pages { value << 12 } else { value }, pages });
    }
    // FEAT_PAuth_LR: autiasppc and autibsppc.
    if word & 0x7F80_0000 == 0x7380_0000 {
        return Refuse(Refusal::SignsAddress);
    }
    if word & 0xBF80_0000 == 0x9100_0000 {
        let value = ((word >> 10 & 0xFFF) << (12 * (word >> 22 & 1))).cast_signed();
        let amount = if word >> 30 & 1 != 0 { -value } else { value };
        return Simulate(Op::Add { to, from: Gpr::field(word, 5), amount });
    }
    PLAIN
}

/// Branches, exceptions and system instructions.
const fn control(word: u32) -> Verdict {
    let of = Gpr::field(word, 0);
    let when = word >> 24 & 1 != 0;
    match word >> 24 {
        0x14..=0x17 | 0x94..=0x97 => {
            Simulate(Op::Branch { offset: signed(word, 0, 26) << 2, link: word >> 31 != 0 })
        }
        0x54 => {
            let test = Test::Flags(Cond((word & 0xF) as u8));
            Simulate(Op::BranchIf { test, offset: signed(word, 5, 19) << 2 })
        }
        0x34 | 0x35 | 0xB4 | 0xB5 => {
            let test = Test::Zero { of, wide: word >> 31 != 0, when: !when };
            Simulate(Op::BranchIf { test, offset: signed(word, 5, 19) << 2 })
        }
        0x36 | 0x37 | 0xB6 | 0xB7 => {
            let test = Test::Bit { of, bit: (word >> 26 & 32 | word >> 19 & 31) as u8, when };
            Simulate(Op::BranchIf { test, offset: signed(word, 5, 14) << 2 })
        }
        // FEAT_PAuth_LR: retaasppc and retabsppc.
        0x55 => Refuse(Refusal::SignsAddress),
        0x74 | 0x75 | 0xF4 | 0xF5 => Refuse(Refusal::CompareBranch),
        0xD4 => exception(word),
        0xD5 => system(word),
        0xD6 | 0xD7 => by_register(word),
        _ => Refuse(Refusal::Unallocated),
    }
}

const fn exception(word: u32) -> Verdict {
    Refuse(match (word >> 21 & 7, word & 0x1F) {
        (0, 1) => Refusal::SystemCall,
        (0, 2 | 3) => Refusal::Monitor,
        (1, 0) => Refusal::Breakpoint,
        (2, 0) | (5, 1..=3) => Refusal::Halt,
        (3, 0) => Refusal::Transaction,
        _ => Refusal::Unallocated,
    })
}

/// `br` and similar: opc in bits 24 to 21, op3 in 15 to 10, op4 in 4 to 0.
const fn by_register(word: u32) -> Verdict {
    let through = match word & !0x3E0 {
        0xD61F_0000 => Through::Jump,
        0xD63F_0000 => Through::Call,
        0xD65F_0000 => Through::Return,
        _ => return by_signed_register(word),
    };
    Simulate(Op::BranchTo { through, to: Gpr::field(word, 5) })
}

/// Pointer authentication, returns from exceptions, and words that are not allocated.
const fn by_signed_register(word: u32) -> Verdict {
    let (zero_modifier, rn_31) = (word & 0x1F == 31, word >> 5 & 31 == 31);
    match word >> 10 {
        // braaz, brabz; braa, brab; retaa, retab.
        0x35_87C2 | 0x35_87C3 if zero_modifier => OutOfLine(Away::Authenticated),
        0x35_C7C2 | 0x35_C7C3 => OutOfLine(Away::Authenticated),
        0x35_97C2 | 0x35_97C3 if rn_31 && zero_modifier => OutOfLine(Away::Authenticated),
        // FEAT_PAuth_LR: retaasppcr, retabsppcr.
        0x35_97C2 | 0x35_97C3 if rn_31 => Refuse(Refusal::SignsAddress),
        // blraaz, blrabz; blraa, blrab.
        0x35_8FC2 | 0x35_8FC3 if zero_modifier => Refuse(Refusal::AuthenticatedCall),
        0x35_CFC2 | 0x35_CFC3 => Refuse(Refusal::AuthenticatedCall),
        // eret, eretaa, eretab; drps.
        0x35_A7C0 if rn_31 && word & 31 == 0 => Refuse(Refusal::Privileged),
        0x35_A7C2 | 0x35_A7C3 if rn_31 && zero_modifier => Refuse(Refusal::Privileged),
        0x35_AFC0 if rn_31 && word & 31 == 0 => Refuse(Refusal::Privileged),
        _ => Refuse(Refusal::Unallocated),
    }
}

/// System instructions: L in bit 21, op0 in 20 and 19, op1 in 18 to 16, CRn in 15 to 12, CRm in 11 to 8, op2
/// in 7 to 5.
const fn system(word: u32) -> Verdict {
    if word >> 22 & 3 != 0 {
        return if word >> 23 & 1 == 0 { Refuse(Refusal::System128) } else { Refuse(Refusal::Unallocated) };
    }
    let (op1, crn) = (word >> 16 & 7, word >> 12 & 0xF);
    match (word >> 19 & 3, word >> 21 & 1 != 0) {
        (0, true) if op1 == 3 && crn == 3 => Refuse(Refusal::Transaction),
        (0, true) => Refuse(Refusal::Unallocated),
        (0, false) => match (op1, crn) {
            // wfet, wfit.
            (3, 1) if word & 0xFC0 == 0 => PLAIN,
            (3, 2) if word & 31 == 31 => hint(word >> 5 & 0x7F),
            (3, 3) if word & 31 == 31 => barrier(word),
            (_, 4) if word & 31 == 31 => state(op1, word >> 5 & 7),
            _ => Refuse(Refusal::Unallocated),
        },
        // Cache maintenance and similar for user space has op1 3, and so have its registers. The kernel
        // emulates reads of the identification registers.
        (1 | 3, _) if op1 == 3 => PLAIN,
        (3, true) if op1 == 0 && crn == 0 => PLAIN,
        _ => Refuse(Refusal::Privileged),
    }
}

/// Hint space: on processors that do not know it, an instruction that is not allocated does nothing.
const fn hint(number: u32) -> Verdict {
    match number {
        // nop, yield, dgh; bti, bti c, bti j, bti jc.
        0 | 1 | 6 | 32 | 34 | 36 | 38 => Simulate(Op::Nop),
        // pacm: the next instruction signs with its own address.
        39 => Refuse(Refusal::SignsAddress),
        _ => PLAIN,
    }
}

const fn barrier(word: u32) -> Verdict {
    match (word >> 5 & 7, word >> 8 & 0xF) {
        // clrex, dsb, dmb, isb; dsb nXS; sb.
        (2 | 4 | 5 | 6, _) | (1, 2 | 6 | 10 | 14) | (7, 0) => PLAIN,
        (3, 0) => Refuse(Refusal::Transaction),
        _ => Refuse(Refusal::Unallocated),
    }
}

/// `msr` of an immediate, `cfinv`, `xaflag`, `axflag`.
const fn state(op1: u32, op2: u32) -> Verdict {
    match (op1, op2) {
        // Flags; SSBS, DIT, SVCR, TCO.
        (0, 0..=2) | (3, 1..=4) => PLAIN,
        _ => Refuse(Refusal::Privileged),
    }
}

/// Loads and stores.
const fn memory(word: u32) -> Verdict {
    if word & 0x3B00_0000 == 0x1800_0000 {
        return literal(word);
    }
    // Exclusives have bit 23 clear. So has casp, which bits 31 and 21 distinguish. The unprivileged ones have
    // bit 24.
    let casp = word & 0x8120_0000 == 0x0020_0000;
    if word & 0x3E80_0000 == 0x0800_0000 && !casp {
        return Refuse(Refusal::Exclusive);
    }
    if word & 0x3B20_0C00 == 0x1900_0400 {
        return Refuse(Refusal::MemoryCopy);
    }
    let (first, by_sp) = (Gpr::field(word, 0), Gpr::field(word, 5).is_31());
    if by_sp && word & 0x7FC0_0000 == 0x2980_0000 {
        let wide = word >> 31 != 0;
        let offset = signed(word, 15, 7) << if wide { 3 } else { 2 };
        return Simulate(if word & 0xFFC0_7FFF == 0xA980_7BFD {
            Op::PushFrame { offset }
        } else {
            Op::Push { wide, first, second: Some(Gpr::field(word, 10)), offset }
        });
    }
    if by_sp && word & 0xBFE0_0C00 == 0xB800_0C00 {
        return Simulate(Op::Push {
            wide: word >> 30 & 1 != 0,
            first,
            second: None,
            offset: signed(word, 12, 9),
        });
    }
    PLAIN
}

/// Loads relative to the instruction: opc in bits 31 and 30, V in bit 26.
const fn literal(word: u32) -> Verdict {
    let (offset, to) = (signed(word, 5, 19) << 2, Gpr::field(word, 0));
    if word >> 26 & 1 == 0 {
        let literal = match word >> 30 {
            0 => Literal::Word,
            1 => Literal::Double,
            2 => Literal::Signed,
            _ => Literal::Prefetch,
        };
        return Simulate(Op::Load { literal, to, offset });
    }
    let size = match word >> 30 {
        0 => Vector::S,
        1 => Vector::D,
        2 => Vector::Q,
        _ => return Refuse(Refusal::Unallocated),
    };
    OutOfLine(Away::LoadVector { size, to: to.number() as u8, offset })
}
