//! Conditions and values as trees: what they consist of, and what is known of one without evaluating it.
//!
//! In: nothing; `parse` makes trees of text. Out: [`Tree`], and when all of it is known. The trees of `parse` keep
//! the limits of (FLT-2).
//! Does not: evaluate (`eval`), decide what is not known (`decided`).

use super::float::Float;

/// Upper bound of a tree's nodes.
pub const MAX_NODES: usize = 48;
/// Number of integer arguments that registers hold.
pub(super) const ARGUMENTS: usize = 6;
/// Upper bound of a probe's fields: a USDT probe may have a number and a text for each argument.
pub const MAX_FIELDS: usize = 24;
/// Upper bound of the intermediate values that wait while others are computed.
pub const MAX_TEMPORARIES: usize = MAX_WORDS - 1;
/// Number of stack words for a tree's code. Beside the values that wait, two are in use: the operands of one
/// operation. One of them is in a register.
pub const MAX_WORDS: usize = 8;

/// An integer type: the low bits of a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Int {
    /// 8, 16, 32 or 64.
    pub bits: u8,
    /// Whether the highest bit is a sign.
    pub signed: bool,
}

impl Int {
    /// All of a register.
    pub const U64: Self = Self { bits: 64, signed: false };

    /// The value of this type in a register, extended to 64 bits.
    #[must_use]
    pub const fn value(self, register: u64) -> u64 {
        let over = 64 - self.bits as u32;
        match self.signed {
            true => ((register << over).cast_signed() >> over).cast_unsigned(),
            false => register << over >> over,
        }
    }
}

/// A value that is known about a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// One of the six arguments that registers hold, from 0 on; of a USDT probe, one of its arguments.
    Argument(u8, Int),
    /// The same of a USDT probe, for a float; its value is its [`Float::key`].
    FloatArgument(u8, Float),
    /// One of the eight float arguments that vector registers hold, from 0 on; its value is its
    /// [`Float::key`].
    Float(u8, Float),
    /// The thread's number, as it sees it itself.
    Thread,
    /// A field of the probe, from 0 on: an integer, if it could be read.
    Field(u8, Int),
    /// Whether all of that field could be read. Only [`Tree::decided`] makes this.
    Readable(u8),
    /// A field that is a float; its value is its [`Float::key`].
    FloatField(u8, Float),
    /// The returned integer.
    Returned(Int),
    /// The returned float; its value is its [`Float::key`].
    FloatReturned(Float),
    /// Duration of the call in nanoseconds.
    Took,
}

/// What a name means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Symbol {
    /// A value that differs from hit to hit.
    Known(Known),
    /// Bits of such an integer.
    Bits {
        /// The integer.
        of: Known,
        /// The lowest of the bits, below 64.
        from: u8,
        /// How many there are: from 1 to 64 - `from`.
        count: u8,
        /// Whether the highest of them is a sign.
        signed: bool,
    },
    /// A constant.
    Constant(i64),
}

/// Operators of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unary {
    /// `-`
    Negate,
    /// `~`
    Complement,
    /// `!`
    Not,
}

/// Operators of two operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "each name is its documentation")]
pub enum Binary {
    Or,
    And,
    BitOr,
    BitXor,
    BitAnd,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    /// Shift by 0 to 63.
    ShiftLeft,
    /// Shift by 0 to 63.
    ShiftRight,
    Add,
    Subtract,
    Multiply,
    /// Division by a constant from 1 to 2⁶³ - 1.
    Divide,
    /// Remainder of a division by such a constant.
    Remainder,
}

impl Binary {
    /// Whether it compares two numbers.
    #[must_use]
    pub const fn compares(self) -> bool {
        use Binary::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
        matches!(self, Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual)
    }
    /// Whether it yields a truth value.
    #[must_use]
    pub const fn is_truth(self) -> bool {
        self.compares() || matches!(self, Self::Or | Self::And)
    }
    /// The result of a comparison if the left side is below the right.
    pub(crate) const fn holds_below(self) -> bool {
        matches!(self, Self::Less | Self::LessEqual | Self::NotEqual)
    }
    /// The result of a comparison if the left side is above the right.
    pub(crate) const fn holds_above(self) -> bool {
        matches!(self, Self::Greater | Self::GreaterEqual | Self::NotEqual)
    }
}

/// A condition, or a value in one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tree {
    /// A constant; it is unsigned if the second field is true.
    Number(u64, bool),
    /// A value that differs from hit to hit.
    Known(Known),
    /// One operand.
    Unary(Unary, Box<Self>),
    /// Two operands.
    Binary(Binary, Box<Self>, Box<Self>),
}

impl Tree {
    /// Whether its value is unsigned.
    #[must_use]
    pub fn is_unsigned(&self) -> bool {
        match self {
            Self::Number(_, unsigned) => *unsigned,
            Self::Known(Known::Argument(_, int) | Known::Field(_, int) | Known::Returned(int)) => {
                int.bits == 64 && !int.signed
            }
            Self::Known(_) | Self::Unary(Unary::Not, _) => false,
            Self::Unary(_, of) => of.is_unsigned(),
            Self::Binary(op, ..) if op.is_truth() => false,
            Self::Binary(
                Binary::ShiftLeft | Binary::ShiftRight | Binary::Divide | Binary::Remainder,
                left,
                _,
            ) => left.is_unsigned(),
            Self::Binary(_, left, right) => left.is_unsigned() || right.is_unsigned(),
        }
    }
    /// Number of its nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        match self {
            Self::Number(..) | Self::Known(_) => 1,
            Self::Unary(_, of) => 1 + of.nodes(),
            Self::Binary(_, left, right) => 1 + left.nodes() + right.nodes(),
        }
    }
    /// Whether it is a single number, constant or known.
    #[must_use]
    pub const fn is_leaf(&self) -> bool {
        matches!(self, Self::Number(..) | Self::Known(_))
    }
    /// Upper bound of the intermediate values that wait while it is computed from left to right.
    #[must_use]
    pub fn temporaries(&self) -> usize {
        match self {
            Self::Number(..) | Self::Known(_) => 0,
            Self::Unary(_, of) => of.temporaries(),
            Self::Binary(Binary::And | Binary::Or, left, right) => {
                left.temporaries().max(right.temporaries())
            }
            Self::Binary(_, left, right) if right.is_leaf() => left.temporaries(),
            Self::Binary(_, left, right) => left.temporaries().max(1 + right.temporaries()),
        }
    }
    /// Calls `each` with every value that differs from hit to hit.
    pub fn each_known(&self, each: &mut impl FnMut(Known)) {
        match self {
            Self::Number(..) => {}
            Self::Known(known) => each(*known),
            Self::Unary(_, of) => of.each_known(each),
            Self::Binary(_, left, right) => {
                left.each_known(each);
                right.each_known(each);
            }
        }
    }
    /// Whether its code divides.
    #[must_use]
    pub fn divides(&self) -> bool {
        match self {
            Self::Number(..) | Self::Known(_) => false,
            Self::Unary(_, of) => of.divides(),
            Self::Binary(op, left, right) => {
                matches!(op, Binary::Divide | Binary::Remainder) || left.divides() || right.divides()
            }
        }
    }
    /// Whether all of it is known when the function is entered.
    #[must_use]
    pub fn is_known_at_entry(&self) -> bool {
        let mut known = true;
        self.each_known(&mut |one| {
            known &= !matches!(
                one,
                Known::Returned(_)
                    | Known::FloatReturned(_)
                    | Known::Took
                    | Known::Field(..)
                    | Known::FloatField(..)
                    | Known::Readable(_)
            );
        });
        known
    }
    /// Whether all of it is known when the function returns; arguments are not known then.
    #[must_use]
    pub fn is_known_at_exit(&self) -> bool {
        let mut known = true;
        self.each_known(&mut |one| {
            known &= matches!(one, Known::Returned(_) | Known::FloatReturned(_) | Known::Thread);
        });
        known
    }
    /// Whether generated code can evaluate it when the function returns, from what its entry kept
    /// ([`Late`](super::Late)).
    #[must_use]
    pub fn is_known_at_return(&self) -> bool {
        self.is_small_decided()
    }
    /// Whether generated code can evaluate it at an entry, once fields are read.
    #[must_use]
    pub fn is_known_with_fields(&self) -> bool {
        let mut known = true;
        self.each_known(&mut |one| {
            known &= !matches!(one, Known::Returned(_) | Known::FloatReturned(_) | Known::Took);
        });
        known && self.is_small_decided()
    }
    /// Whether it depends on the returned value, or on the duration. Neither is known of a call that ends by
    /// a tail call.
    #[must_use]
    pub fn asks_for_end(&self) -> bool {
        let mut asks = false;
        self.each_known(&mut |one| {
            asks |= matches!(one, Known::Returned(_) | Known::FloatReturned(_) | Known::Took);
        });
        asks
    }
    /// Whether it depends on the thread.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        let mut asks = false;
        self.each_known(&mut |known| asks |= known == Known::Thread);
        asks
    }
    /// Both conditions joined by `&&`, or the only one.
    #[must_use]
    pub fn and(left: Option<Self>, right: Option<Self>) -> Option<Self> {
        match (left, right) {
            (Some(left), Some(right)) => Some(Self::Binary(Binary::And, Box::new(left), Box::new(right))),
            (left, right) => left.or(right),
        }
    }
    /// Splits it into what can be decided when the function is entered, and what cannot: both must hold.
    #[must_use]
    pub fn split(self) -> (Option<Self>, Option<Self>) {
        self.split_by(Self::is_known_at_entry)
    }
    /// Splits it into the parts for which `is_first` holds, and the rest: both must hold.
    #[must_use]
    pub fn split_by(self, is_first: fn(&Self) -> bool) -> (Option<Self>, Option<Self>) {
        match self {
            Self::Binary(Binary::And, left, right) => {
                let ((first, rest), (also_first, also_rest)) =
                    (left.split_by(is_first), right.split_by(is_first));
                (Self::and(first, also_first), Self::and(rest, also_rest))
            }
            tree if is_first(&tree) => (Some(tree), None),
            tree => (None, Some(tree)),
        }
    }
}
