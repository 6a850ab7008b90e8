//! What one operation computes from numbers.
//!
//! In: numbers of 64 bits. Out: the same. Does not: know variables.

/// An integer type: the low bits of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Width {
    /// 8, 16, 32 or 64.
    pub bits: u8,
    /// Whether the highest bit is a sign.
    pub signed: bool,
}

impl Width {
    /// The low bits of `value`, extended to 64.
    #[must_use]
    pub const fn extend(self, value: u64) -> u64 {
        let over = 64_u32.saturating_sub(self.bits as u32) & 63;
        match self.signed {
            true => ((value << over).cast_signed() >> over).cast_unsigned(),
            false => value << over >> over,
        }
    }
}

/// A computation with one operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Unary {
    /// `-a`
    Negate,
    /// All bits the other way.
    Complement,
    /// The number of bits that the number has: 0 for 0, 1 for 1, 64 from 2⁶³ on.
    Bits,
    /// The low bits, extended.
    Extend(Width),
}

impl Unary {
    /// Its result.
    #[must_use]
    pub const fn apply(self, of: u64) -> u64 {
        match self {
            Self::Negate => of.wrapping_neg(),
            Self::Complement => !of,
            Self::Bits => (u64::BITS - of.leading_zeros()) as u64,
            Self::Extend(width) => width.extend(of),
        }
    }
}

/// A computation with two operands. All wrap.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compute {
    /// `a + b`
    Add,
    /// `a - b`
    Subtract,
    /// The low 64 bits of the product.
    Multiply,
    /// `a & b`
    And,
    /// `a | b`
    Or,
    /// `a ^ b`
    Xor,
    /// `a << b`; `b` is a number from 0 to 63.
    ShiftLeft,
    /// `a >> b`, with zeros shifted in; `b` as above.
    ShiftRight,
    /// `a >> b`, with copies of the sign shifted in; `b` as above.
    ShiftSigned,
    /// Unsigned quotient; `b` is a number from 1 to 2³¹ - 1, or a variable that only one
    /// [`Op::Number`](crate::Op::Number) writes, with a number from 1 to 2⁶³ - 1.
    Divide,
    /// Signed quotient, rounded towards 0; `b` as above.
    DivideSigned,
    /// Unsigned remainder; `b` as above.
    Remainder,
    /// Signed remainder, which has the sign of `a`; `b` as above.
    RemainderSigned,
}

impl Compute {
    /// Its result. A divisor of 0, which no verified program has, gives 0.
    #[must_use]
    pub const fn apply(self, a: u64, b: u64) -> u64 {
        let (signed_a, signed_b) = (a.cast_signed(), b.cast_signed());
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Subtract => a.wrapping_sub(b),
            Self::Multiply => a.wrapping_mul(b),
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a << (b & 63),
            Self::ShiftRight => a >> (b & 63),
            Self::ShiftSigned => (signed_a >> (b & 63)).cast_unsigned(),
            _ if b == 0 => 0,
            Self::Divide => a / b,
            Self::Remainder => a % b,
            Self::DivideSigned => signed_a.wrapping_div(signed_b).cast_unsigned(),
            Self::RemainderSigned => signed_a.wrapping_rem(signed_b).cast_unsigned(),
        }
    }
    /// Whether it divides.
    #[must_use]
    pub const fn divides(self) -> bool {
        matches!(self, Self::Divide | Self::DivideSigned | Self::Remainder | Self::RemainderSigned)
    }
    /// Whether it shifts.
    #[must_use]
    pub const fn shifts(self) -> bool {
        matches!(self, Self::ShiftLeft | Self::ShiftRight | Self::ShiftSigned)
    }
    /// Whether its operands may change places.
    #[must_use]
    pub const fn commutes(self) -> bool {
        matches!(self, Self::Add | Self::Multiply | Self::And | Self::Or | Self::Xor)
    }
}

/// A comparison; of unsigned numbers where its name says `Below` or `Above`, else of signed ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compare {
    /// `a == b`
    Equal,
    /// `a != b`
    NotEqual,
    /// `a < b`, signed
    Less,
    /// `a <= b`, signed
    LessEqual,
    /// `a > b`, signed
    Greater,
    /// `a >= b`, signed
    GreaterEqual,
    /// `a < b`, unsigned
    Below,
    /// `a <= b`, unsigned
    BelowEqual,
    /// `a > b`, unsigned
    Above,
    /// `a >= b`, unsigned
    AboveEqual,
}

impl Compare {
    /// Whether it holds.
    #[must_use]
    pub const fn holds(self, a: u64, b: u64) -> bool {
        let (signed_a, signed_b) = (a.cast_signed(), b.cast_signed());
        match self {
            Self::Equal => a == b,
            Self::NotEqual => a != b,
            Self::Less => signed_a < signed_b,
            Self::LessEqual => signed_a <= signed_b,
            Self::Greater => signed_a > signed_b,
            Self::GreaterEqual => signed_a >= signed_b,
            Self::Below => a < b,
            Self::BelowEqual => a <= b,
            Self::Above => a > b,
            Self::AboveEqual => a >= b,
        }
    }
    /// The comparison that holds exactly where this one does not.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Equal => Self::NotEqual,
            Self::NotEqual => Self::Equal,
            Self::Less => Self::GreaterEqual,
            Self::LessEqual => Self::Greater,
            Self::Greater => Self::LessEqual,
            Self::GreaterEqual => Self::Less,
            Self::Below => Self::AboveEqual,
            Self::BelowEqual => Self::Above,
            Self::Above => Self::BelowEqual,
            Self::AboveEqual => Self::Below,
        }
    }
}
