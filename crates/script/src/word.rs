//! A number that the target computes at a hit: what an expression of a script becomes there.
//!
//! In: nothing; `lower` makes it. Out: plain data. Invariant: LOW-1 the number that a word gives is the one that the
//! expression has in the interpreter. Numbers are as in the target's own language of conditions: 64 bits that wrap;
//! they have a sign unless [`Word::is_unsigned`]; comparisons are those of the numbers. Does not: generate code.

use crate::tree::{Binary, Unary};

/// How a value's bits are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width {
    /// 8, 16, 32 or 64: the low bits of a register.
    pub bits: u8,
    /// Whether the highest of them is a sign.
    pub signed: bool,
}

/// A number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// A constant; it has no sign if the second field is true.
    Number(u64, bool),
    /// An argument of the function.
    Argument(u8, Width),
    /// What the function returned.
    Returned(Width),
    /// The thread's number; it is only compared with constants.
    Thread,
    /// One operand.
    Unary(Unary, Box<Self>),
    /// Two operands.
    Binary(Binary, Box<Self>, Box<Self>),
}

impl Word {
    pub(crate) fn binary(op: Binary, left: Self, right: Self) -> Self {
        Self::Binary(op, Box::new(left), Box::new(right))
    }
    /// Whether the target takes its bits for a number without a sign.
    #[must_use]
    pub fn is_unsigned(&self) -> bool {
        match self {
            Self::Number(_, unsigned) => *unsigned,
            Self::Argument(_, width) | Self::Returned(width) => width.bits == 64 && !width.signed,
            Self::Thread | Self::Unary(Unary::Not, _) => false,
            Self::Unary(_, of) => of.is_unsigned(),
            Self::Binary(op, ..) if op.compares() || op.is_logical() => false,
            Self::Binary(Binary::Left | Binary::Right | Binary::Divide | Binary::Remainder, left, _) => {
                left.is_unsigned()
            }
            Self::Binary(_, left, right) => left.is_unsigned() || right.is_unsigned(),
        }
    }
    /// Whether the highest bit is certainly 0, so that it is the same number with a sign and without.
    pub(crate) fn suits_both(&self) -> bool {
        let at_least = |word: &Self, least| matches!(word, Self::Number(number, _) if *number >= least);
        match self {
            Self::Number(number, _) => number >> 63 == 0,
            Self::Argument(_, width) | Self::Returned(width) => width.bits < 64 && !width.signed,
            Self::Thread | Self::Unary(Unary::Not, _) => true,
            Self::Unary(..) => false,
            Self::Binary(op, ..) if op.compares() || op.is_logical() => true,
            Self::Binary(Binary::BitAnd, left, right) => left.suits_both() || right.suits_both(),
            Self::Binary(Binary::BitOr | Binary::BitXor, left, right) => {
                left.suits_both() && right.suits_both()
            }
            Self::Binary(Binary::Right, left, by) => {
                left.suits_both() || left.is_unsigned() && at_least(by, 1)
            }
            Self::Binary(Binary::Divide, left, by) => {
                left.suits_both() || left.is_unsigned() && at_least(by, 2)
            }
            Self::Binary(Binary::Remainder, left, _) => left.suits_both() || left.is_unsigned(),
            Self::Binary(..) => false,
        }
    }
    /// Whether it depends on what the function returned.
    #[must_use]
    pub fn asks_for_return(&self) -> bool {
        match self {
            Self::Returned(_) => true,
            Self::Number(..) | Self::Argument(..) | Self::Thread => false,
            Self::Unary(_, of) => of.asks_for_return(),
            Self::Binary(_, left, right) => left.asks_for_return() || right.asks_for_return(),
        }
    }
    /// Number of its parts.
    pub(crate) fn parts(&self) -> usize {
        match self {
            Self::Number(..) | Self::Argument(..) | Self::Returned(_) | Self::Thread => 1,
            Self::Unary(_, of) => 1 + of.parts(),
            Self::Binary(_, left, right) => 1 + left.parts() + right.parts(),
        }
    }
    /// Upper bound of the values that wait while others are computed.
    pub(crate) fn waiting(&self) -> usize {
        match self {
            Self::Number(..) | Self::Argument(..) | Self::Returned(_) | Self::Thread => 0,
            Self::Unary(_, of) => of.waiting(),
            Self::Binary(_, left, right) => left.waiting().max(1 + right.waiting()),
        }
    }
}
