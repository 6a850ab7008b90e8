//! What takes a block's operations.
//!
//! In: nothing. Out: the trait, and the names of operations. All values are words of 64 bits; arithmetic wraps.
//! Does not: implement it.

use crate::tree::Binary;

/// What is known of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// An argument, by its number.
    Argument(u8),
    /// What was returned.
    Returned,
    /// The thread.
    Thread,
    /// The time, by the boot clock.
    Nanos,
    /// The place that was hit.
    Probe,
    /// The number of the stack.
    Stack,
}

/// A computation with one operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unary {
    /// `-x`
    Negate,
    /// `~x`
    Invert,
    /// The lowest bytes, extended.
    Extend {
        /// 1, 2 or 4.
        bytes: u8,
        /// By their sign.
        signed: bool,
    },
    /// How many bits a number has, from its highest 1 on; 0 has none.
    Bits,
}

/// A computation with two operands. Divisors and distances of shifts are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Compute {
    Add,
    Subtract,
    Multiply,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Divide,
    DivideSigned,
    Remainder,
    RemainderSigned,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Below,
    BelowEqual,
    Above,
    AboveEqual,
}

impl Compare {
    /// An operator's comparison with signs, and without.
    pub(super) const fn of(op: Binary) -> Option<(Self, Self)> {
        Some(match op {
            Binary::Equal => (Self::Equal, Self::Equal),
            Binary::Unequal => (Self::NotEqual, Self::NotEqual),
            Binary::Less => (Self::Less, Self::Below),
            Binary::LessEqual => (Self::LessEqual, Self::BelowEqual),
            Binary::Greater => (Self::Greater, Self::Above),
            Binary::GreaterEqual => (Self::GreaterEqual, Self::AboveEqual),
            _ => return None,
        })
    }
    /// The comparison that holds where this one does not.
    pub(super) const fn opposite(self) -> Self {
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

/// Takes operations, in the order in which they run.
pub trait Emit {
    /// A value that was computed.
    type Value: Copy;
    /// A place to go to, further on.
    type Label: Copy;
    /// What holds values one after another. It is set before it is read.
    type Variable: Copy;

    /// A number.
    fn number(&mut self, number: u64) -> Self::Value;
    /// What is known of the hit.
    fn known(&mut self, known: Known) -> Self::Value;
    /// The result of a computation.
    fn unary(&mut self, op: Unary, of: Self::Value) -> Self::Value;
    /// The same with two operands.
    fn compute(&mut self, op: Compute, left: Self::Value, right: Self::Value) -> Self::Value;
    /// A new variable.
    fn variable(&mut self) -> Self::Variable;
    /// Sets a variable.
    fn set(&mut self, to: Self::Variable, value: Self::Value);
    /// The value that it has now.
    fn get(&mut self, of: Self::Variable) -> Self::Value;
    /// A new label.
    fn label(&mut self) -> Self::Label;
    /// The label's place is here.
    fn bind(&mut self, label: Self::Label);
    /// Goes to a label.
    fn jump(&mut self, to: Self::Label);
    /// Goes to a label if a comparison holds.
    fn branch(&mut self, when: Compare, left: Self::Value, right: Self::Value, to: Self::Label);
    /// Adds to the words of a key's value. `extreme`: the last word becomes its value, if this comparison with it holds.
    fn add(&mut self, map: usize, key: &[Self::Value], values: &[Self::Value], extreme: Option<Compare>);
    /// Assigns a key's value.
    fn assign(&mut self, map: usize, key: &[Self::Value], value: Self::Value);
    /// Deletes a key.
    fn delete(&mut self, map: usize, key: &[Self::Value]);
    /// Whether there is a key, and its value or 0.
    fn read(&mut self, map: usize, key: &[Self::Value]) -> (Self::Value, Self::Value);
}

/// Takes operations and forgets them: to find out whether there are any.
#[derive(Debug)]
pub(super) struct Nothing;

impl Emit for Nothing {
    type Value = ();
    type Label = ();
    type Variable = ();

    fn number(&mut self, _: u64) {}
    fn known(&mut self, _: Known) {}
    fn unary(&mut self, _: Unary, (): ()) {}
    fn compute(&mut self, _: Compute, (): (), (): ()) {}
    fn variable(&mut self) {}
    fn set(&mut self, (): (), (): ()) {}
    fn get(&mut self, (): ()) {}
    fn label(&mut self) {}
    fn bind(&mut self, (): ()) {}
    fn jump(&mut self, (): ()) {}
    fn branch(&mut self, _: Compare, (): (), (): (), (): ()) {}
    fn add(&mut self, _: usize, _: &[()], _: &[()], _: Option<Compare>) {}
    fn assign(&mut self, _: usize, _: &[()], (): ()) {}
    fn delete(&mut self, _: usize, _: &[()]) {}
    fn read(&mut self, _: usize, _: &[()]) -> ((), ()) {
        ((), ())
    }
}
