//! The value of a tree for given facts: the meaning of the language. Generated code must agree with it
//! (FLT-1).

use super::float::Float;
use super::target::OPERANDS;
use super::tree::{ARGUMENTS, Binary, Known, MAX_FIELDS, Tree, Unary};

/// What is known about a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// The six argument registers at the entry; of a USDT probe, its first arguments.
    pub arguments: [u64; ARGUMENTS],
    /// A USDT probe's arguments from the seventh on.
    pub more: [u64; OPERANDS - ARGUMENTS],
    /// Bit `n`: argument `n` is not known.
    pub unseen: u16,
    /// Which of a USDT probe's arguments are floats.
    pub float_arguments: FloatArguments,
    /// The low 64 bits of the eight vector registers of arguments, at the entry.
    pub floats: [u64; 8],
    /// The probe's fields, as far as they could be read.
    pub fields: [Option<u64>; MAX_FIELDS],
    /// The thread's number.
    pub tid: u32,
    /// The returned value, if known.
    pub returned: Option<u64>,
    /// Duration in nanoseconds, if known.
    pub took_ns: Option<u64>,
}

/// Which arguments of a USDT probe are floats, according to its note. No other argument is one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FloatArguments {
    /// Bit `n`: argument `n` is a float of 32 bits.
    pub single: u16,
    /// Bit `n`: argument `n` is a float of 64 bits.
    pub double: u16,
}

impl FloatArguments {
    /// The type of a float; `None` for all other arguments.
    #[must_use]
    pub const fn of(self, nth: u8) -> Option<Float> {
        match (self.single >> (nth & 15) & 1, self.double >> (nth & 15) & 1) {
            (1, _) => Some(Float::Single),
            (_, 1) => Some(Float::Double),
            _ => None,
        }
    }
}

impl Facts {
    /// The word of an argument that is a float of this type, or none.
    fn argument(&self, nth: u8, float: Option<Float>) -> Option<u64> {
        let is_seen = self.unseen >> (nth & 15) & 1 == 0 && self.float_arguments.of(nth) == float;
        self.arguments.iter().chain(&self.more).nth(nth.into()).copied().filter(|_| is_seen)
    }
}

impl Tree {
    /// Whether it holds; `None` if something that decides it is not known.
    #[must_use]
    pub fn holds(&self, facts: &Facts) -> Option<bool> {
        self.value(facts).map(|value| value != 0)
    }
    /// Its value; `None` if something that it depends on is not known.
    #[must_use]
    pub fn evaluate(&self, facts: &Facts) -> Option<u64> {
        self.value(facts)
    }
    pub(super) fn value(&self, facts: &Facts) -> Option<u64> {
        match self {
            Self::Number(value, _) => Some(*value),
            Self::Known(known) => match *known {
                Known::Argument(index, int) => facts.argument(index, None).map(|value| int.value(value)),
                Known::FloatArgument(index, float) => {
                    facts.argument(index, Some(float)).map(|bits| float.key(bits).cast_unsigned())
                }
                Known::Float(index, float) => {
                    Some(float.key(facts.floats[usize::from(index) % 8]).cast_unsigned())
                }
                Known::Field(index, int) => {
                    facts.fields[usize::from(index) % MAX_FIELDS].map(|value| int.value(value))
                }
                Known::FloatField(index, float) => {
                    let bits = facts.fields[usize::from(index) % MAX_FIELDS];
                    bits.map(|bits| float.key(bits).cast_unsigned())
                }
                Known::Readable(index) => {
                    Some(facts.fields[usize::from(index) % MAX_FIELDS].is_some().into())
                }
                Known::FloatReturned(float) => facts.returned.map(|bits| float.key(bits).cast_unsigned()),
                Known::Thread => Some(facts.tid.into()),
                Known::Returned(int) => facts.returned.map(|value| int.value(value)),
                Known::Took => facts.took_ns,
            },
            Self::Unary(op, of) => {
                let of = of.value(facts)?;
                Some(match op {
                    Unary::Negate => of.wrapping_neg(),
                    Unary::Complement => !of,
                    Unary::Not => u64::from(of == 0),
                })
            }
            Self::Binary(op, left, right) => {
                let (a, b) = (left.value(facts), right.value(facts));
                match op {
                    // One side may decide alone.
                    Binary::And if a == Some(0) || b == Some(0) => return Some(0),
                    Binary::Or if a.is_some_and(|a| a != 0) || b.is_some_and(|b| b != 0) => return Some(1),
                    _ => {}
                }
                Some(binary(*op, (a?, left.is_unsigned()), (b?, right.is_unsigned())))
            }
        }
    }
}

impl Tree {
    /// The same tree with other thread numbers, where threads are compared for being equal.
    #[must_use]
    pub fn with_threads(&self, other: &impl Fn(u64) -> u64) -> Self {
        let number = |tree: &Self| match tree {
            Self::Number(thread, unsigned) => Self::Number(other(*thread), *unsigned),
            tree => tree.clone(),
        };
        match self {
            Self::Binary(op @ (Binary::Equal | Binary::NotEqual), left, right)
                if [left, right].iter().any(|tree| ***tree == Self::Known(Known::Thread)) =>
            {
                Self::Binary(*op, Box::new(number(left)), Box::new(number(right)))
            }
            Self::Number(..) | Self::Known(_) => self.clone(),
            Self::Unary(op, of) => Self::Unary(*op, Box::new(of.with_threads(other))),
            Self::Binary(op, left, right) => {
                Self::Binary(*op, Box::new(left.with_threads(other)), Box::new(right.with_threads(other)))
            }
        }
    }
    /// The same tree with other values in place of those that differ from hit to hit.
    #[must_use]
    pub fn with_known(&self, other: &impl Fn(Known) -> Known) -> Self {
        match self {
            Self::Number(..) => self.clone(),
            Self::Known(known) => Self::Known(other(*known)),
            Self::Unary(op, of) => Self::Unary(*op, Box::new(of.with_known(other))),
            Self::Binary(op, left, right) => {
                Self::Binary(*op, Box::new(left.with_known(other)), Box::new(right.with_known(other)))
            }
        }
    }
}

/// The number that 64 bits mean.
fn number((bits, unsigned): (u64, bool)) -> i128 {
    if unsigned { bits.into() } else { bits.cast_signed().into() }
}

fn binary(op: Binary, left: (u64, bool), right: (u64, bool)) -> u64 {
    let ((a, unsigned), (b, _)) = (left, right);
    let order = number(left).cmp(&number(right));
    match op {
        Binary::Or => u64::from(a != 0 || b != 0),
        Binary::And => u64::from(a != 0 && b != 0),
        Binary::BitOr => a | b,
        Binary::BitXor => a ^ b,
        Binary::BitAnd => a & b,
        Binary::Equal => u64::from(order.is_eq()),
        Binary::NotEqual => u64::from(order.is_ne()),
        Binary::Less => u64::from(order.is_lt()),
        Binary::LessEqual => u64::from(order.is_le()),
        Binary::Greater => u64::from(order.is_gt()),
        Binary::GreaterEqual => u64::from(order.is_ge()),
        Binary::ShiftLeft => a << (b & 63),
        Binary::ShiftRight if unsigned => a >> (b & 63),
        Binary::ShiftRight => (a.cast_signed() >> (b & 63)).cast_unsigned(),
        Binary::Add => a.wrapping_add(b),
        Binary::Subtract => a.wrapping_sub(b),
        Binary::Multiply => a.wrapping_mul(b),
        // The parser accepts only divisors from 1 to 2⁶³ - 1.
        Binary::Divide if unsigned => a.checked_div(b).unwrap_or(0),
        Binary::Divide => a.cast_signed().checked_div(b.cast_signed()).unwrap_or(0).cast_unsigned(),
        Binary::Remainder if unsigned => a.checked_rem(b).unwrap_or(0),
        Binary::Remainder => a.cast_signed().checked_rem(b.cast_signed()).unwrap_or(0).cast_unsigned(),
    }
}
