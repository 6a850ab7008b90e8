//! Results and flags of arithmetic (SDM vol. 1, 3.4.3.1). Pure functions of two operands.

use super::op::{Alu, Condition, LoopTest, Size};

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;
/// The flags that arithmetic sets.
pub(super) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// The result, and the status flags; other bits are clear. The manual leaves AF undefined after `and`, `or`,
/// `xor` and `test`; here it is clear, as after them on processors of both vendors.
pub(super) fn compute(what: Alu, size: Size, a: u64, b: u64) -> (u64, u64) {
    let (a, b) = (a & size.mask(), b & size.mask());
    let (result, carry, overflow, auxiliary) = match what {
        Alu::Add => {
            let sum = a.wrapping_add(b) & size.mask();
            (sum, sum < a, (a ^ sum) & (b ^ sum), a ^ b ^ sum)
        }
        Alu::Sub | Alu::Cmp => {
            let difference = a.wrapping_sub(b) & size.mask();
            (difference, a < b, (a ^ b) & (a ^ difference), a ^ b ^ difference)
        }
        Alu::And | Alu::Test => (a & b, false, 0, 0),
        Alu::Or => (a | b, false, 0, 0),
        Alu::Xor => (a ^ b, false, 0, 0),
    };
    let when = |condition: bool, flag: u64| if condition { flag } else { 0 };
    let flags = when(carry, CF)
        | when((result as u8).count_ones().is_multiple_of(2), PF)
        | auxiliary & AF
        | when(result == 0, ZF)
        | when(result & size.sign() != 0, SF)
        | when(overflow & size.sign() != 0, OF);
    (result, flags)
}

impl Condition {
    /// Whether it holds with these flags.
    #[must_use]
    pub const fn holds(self, rflags: u64) -> bool {
        let less = (rflags & SF != 0) != (rflags & OF != 0);
        let positive = match self.number() >> 1 {
            0 => rflags & OF != 0,
            1 => rflags & CF != 0,
            2 => rflags & ZF != 0,
            3 => rflags & (CF | ZF) != 0,
            4 => rflags & SF != 0,
            5 => rflags & PF != 0,
            6 => less,
            _ => rflags & ZF != 0 || less,
        };
        positive == (self.number() & 1 == 0)
    }
}

impl LoopTest {
    /// Whether it jumps, by the count after the decrement and the flags.
    pub(super) const fn holds(self, count: u64, rflags: u64) -> bool {
        match self {
            Self::Count => count != 0,
            Self::CountEqual => count != 0 && rflags & ZF != 0,
            Self::CountNotEqual => count != 0 && rflags & ZF == 0,
            Self::Zero => count == 0,
        }
    }
}
