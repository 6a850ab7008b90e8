//! The rules that a program may break, and why a program has no code.
//!
//! In: nothing. Out: plain values and messages. Does not: check anything (`verify`).

use crate::allocate::NoRoom;
use crate::program::{MAX_OPS, MAX_STEPS};

/// Why there is no code of a program. A stub that lacks code must not be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoCode {
    /// The program breaks a rule.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// The stub has too little room for it.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

/// A rule that a program breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsound {
    /// It is too long.
    #[error("the program has {0} operations; at most {MAX_OPS} are allowed")]
    Long(usize),
    /// A variable may not have been written.
    #[error("operation {op} reads v{var}, which is not written on every path to it")]
    Unwritten {
        /// The operation's number; that of the end is the number of operations.
        op: usize,
        /// The variable's number.
        var: usize,
    },
    /// A branch leads to a label that is not ahead.
    #[error("operation {op} goes to label {label}, which is not ahead of it")]
    Backward {
        /// The operation's number.
        op: usize,
        /// The label's number.
        label: u16,
    },
    /// A label is bound twice.
    #[error("operation {op} binds label {label} for a second time")]
    BoundTwice {
        /// The operation's number.
        op: usize,
        /// The label's number.
        label: u16,
    },
    /// A shift is not by a number from 0 to 63.
    #[error("operation {0} shifts by something else than a number from 0 to 63")]
    Shift(usize),
    /// A division is not by a number from 1 to 2⁶³ - 1.
    #[error("operation {0} divides by something else than a number from 1 to 2^63 - 1")]
    Divisor(usize),
    /// An extension is not from 8, 16, 32 or 64 bits.
    #[error("operation {op} extends {bits} bits; there are 8, 16, 32 and 64")]
    Bits {
        /// The operation's number.
        op: usize,
        /// The number of bits.
        bits: u8,
    },
    /// A walk is not as [`Op::Bound`](crate::Op::Bound) says: it does not end, goes on behind its last entry, or lies
    /// within another one.
    #[error("operation {0} breaks off, repeats or nests a walk")]
    Walk(usize),
    /// Its walks are too long.
    #[error("the program's walks take up to {0} operations; at most {MAX_STEPS} are allowed")]
    Steps(usize),
    /// An address is not computed from a pointer.
    #[error("operation {0} uses an address that is not computed from a pointer")]
    NoPointer(usize),
    /// A variable is a pointer at one place, and a number or another pointer at another one.
    #[error("operation {op} makes v{var} lead to other memory than before")]
    Mixed {
        /// The operation's number.
        op: usize,
        /// The variable's number.
        var: usize,
    },
    /// A table is written otherwise than its kind allows.
    #[error("operation {0} writes memory in a way that this memory or program does not allow")]
    Store(usize),
    /// A word is claimed and not published, or the other way round.
    #[error("operation {0} leaves a word claimed, or stores where none is claimed")]
    Claim(usize),
    /// The commit is not to this CPU's table, or a store before it changes its word.
    #[error("the commit is not the only store to its word of this CPU's table")]
    Commit,
}
