//! What takes a block's operations.
//!
//! In: nothing. Out: the trait. All values are words of 64 bits; operations are the compiler's (`trapline_code`).
//! Does not: implement it.

use trapline_code::{Compare, Compute, Unary};

use crate::tree::Binary;

/// What is known of a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// An argument, by its number.
    Argument(u8),
    /// What was returned.
    Returned,
    /// The thread, by the number that it sees.
    Thread,
    /// The thread, as no other one of all processes that share the maps.
    Member,
    /// The time, by the boot clock.
    Nanos,
    /// The number of the function that was hit.
    Func,
    /// The number of the probe.
    Probe,
    /// The number of the sort of probe.
    Sort,
    /// The number of the stack.
    Stack,
    /// The number of a text that was read, by its place among those of the hit's program.
    Text(u8),
}

/// An operator's comparison with signs, and without.
pub(super) const fn comparison(op: Binary) -> Option<(Compare, Compare)> {
    Some(match op {
        Binary::Equal => (Compare::Equal, Compare::Equal),
        Binary::Unequal => (Compare::NotEqual, Compare::NotEqual),
        Binary::Less => (Compare::Less, Compare::Below),
        Binary::LessEqual => (Compare::LessEqual, Compare::BelowEqual),
        Binary::Greater => (Compare::Greater, Compare::Above),
        Binary::GreaterEqual => (Compare::GreaterEqual, Compare::AboveEqual),
        _ => return None,
    })
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
    /// Assigns the words of a key's value.
    fn assign(&mut self, map: usize, key: &[Self::Value], values: &[Self::Value]);
    /// Puts an entry beside all others.
    fn say(&mut self, map: usize, key: &[Self::Value], values: &[Self::Value]);
    /// Deletes a key.
    fn delete(&mut self, map: usize, key: &[Self::Value]);
    /// Whether there is a key, and a word of its value, or 0.
    fn read(&mut self, map: usize, key: &[Self::Value], word: usize) -> (Self::Value, Self::Value);
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
    fn assign(&mut self, _: usize, _: &[()], _: &[()]) {}
    fn say(&mut self, _: usize, _: &[()], _: &[()]) {}
    fn delete(&mut self, _: usize, _: &[()]) {}
    fn read(&mut self, _: usize, _: &[()], _: usize) -> ((), ()) {
        ((), ())
    }
}
