//! What an access does to memory; both processors' `store` describe an instruction with these types.
//!
//! In: operands. Out: values. Invariant: INSN-4 an address or a value in an answer is what the processor
//! uses; in doubt there is none.
//! Does not: decode, know what memory contained.

/// The lowest `size` bytes.
pub(crate) const fn low(value: u64, size: usize) -> u64 {
    if size >= 8 { value } else { value & ((1 << (8 * size)) - 1) }
}

/// What a read-modify-write makes of the old value, with its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// `add`, `inc`; also `sub` and `dec`, with the operand negated.
    Add(u64),
    /// `and`
    And(u64),
    /// `or`
    Or(u64),
    /// `xor`, `not`
    Xor(u64),
    /// `neg`
    Neg,
    /// `shl`, by fewer bits than the operand has.
    Shl(u32),
    /// `shr`
    Shr(u32),
    /// `sar`
    Sar(u32),
    /// `rol`
    Rol(u32),
    /// `ror`
    Ror(u32),
    /// The larger of both, as signed numbers.
    MaxSigned(u64),
    /// The smaller of both, as signed numbers.
    MinSigned(u64),
    /// The larger of both.
    Max(u64),
    /// The smaller of both.
    Min(u64),
    /// Another value, if the old one is as expected.
    Swap {
        /// The old value.
        expected: u64,
        /// The value stored in its place.
        new: u64,
    },
}

impl Op {
    /// The new value of an operand of `size` bytes.
    #[must_use]
    pub fn apply(self, old: u64, size: u8) -> u64 {
        let bits = 8 * u32::from(size.clamp(1, 8));
        let old = low(old, size.into());
        let signed = |value: u64| (value << (64 - bits)).cast_signed() >> (64 - bits);
        let wide = match self {
            Self::Add(by) => old.wrapping_add(by),
            Self::And(with) => old & with,
            Self::Or(with) => old | with,
            Self::Xor(with) => old ^ with,
            Self::Neg => old.wrapping_neg(),
            Self::Shl(by) => old.checked_shl(by).unwrap_or(0),
            Self::Shr(by) => old.checked_shr(by).unwrap_or(0),
            Self::Sar(by) => (signed(old) >> by.min(63)).cast_unsigned(),
            Self::Rol(by) | Self::Ror(by) if by % bits == 0 => old,
            Self::Rol(by) => old << (by % bits) | old >> (bits - by % bits),
            Self::Ror(by) => old >> (by % bits) | old << (bits - by % bits),
            Self::MaxSigned(with) => signed(old).max(signed(with)).cast_unsigned(),
            Self::MinSigned(with) => signed(old).min(signed(with)).cast_unsigned(),
            Self::Max(with) => old.max(low(with, size.into())),
            Self::Min(with) => old.min(low(with, size.into())),
            Self::Swap { expected, new } if old == low(expected, size.into()) => new,
            Self::Swap { .. } => old,
        };
        low(wide, size.into())
    }
}

/// What an access wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// Nothing: a load.
    Nothing,
    /// This value, of at most 8 bytes. The value before is included if the registers show it.
    Value {
        /// The value after the access.
        new: u64,
        /// The value before.
        old: Option<u64>,
    },
    /// The result of this operation on the old value.
    Changed(Op),
    /// The element, repeated over all bytes of the range: `rep stos`.
    Fill(u64),
    /// The registers do not show the new value; perhaps they show the value before (`xchg`, `xadd`).
    Unknown {
        /// The value before.
        old: Option<u64>,
    },
}

/// One access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effect {
    /// Address of the first byte; `None` when its segment's base is unknown (thread-local data).
    pub at: Option<u64>,
    /// Length in bytes. For a repeated instruction, as many as may have been accessed since the last possible
    /// trap.
    pub len: u32,
    /// Length of one element in bytes.
    pub size: u8,
    /// What the access wrote.
    pub stored: Stored,
}
