//! The entry of a hit's stack in the table of stacks that keys name (`record::maps::StackTable`).
//!
//! In: the table, the stack's number, which the stub has computed. Out: a program that finds the entry, or takes a
//! free one for the stub to fill. Invariant: HIT-2 a key that names a stack names one that this probe was hit with,
//! or one that is told as unknown.
//!
//! | step | what | a signal handler, the thread's end, a fork, or another thread behind it |
//! |---|---|---|
//! | K1 | the stub walks the return addresses (STK-1, STK-2): | nothing has changed |
//! | | number = number · PHI + address, from probe + 1 on | |
//! | K2 | this program looks for the number (M1, M2, M5 of `maps`). There: the block runs | - |
//! | K3 | a free entry is claimed, the number is stored, | who finds the number goes on with it. |
//! | | GONE is published (M3, M4) | The reader passes over GONE |
//! | K4 | the stub walks again, into the entry, and publishes LIVE | as K3. The thread ends: the stack stays unknown. |
//! | | | A child's copy of the thread stores the same words |
//! | K5 | no entry is left: one more update without an entry; the block does not run | - |
//!
//! Two threads with the same new stack may take two entries, with the same words. Another thread that changes this
//! stack between K1 and K4 changes what the entry shows. Two stacks with the same number of 64 bits would be taken
//! for one: with 8,000 stacks that has a chance of about 2 in 10¹².
//!
//! Does not: walk.

use trapline_code::{Builder, Program, Target, Unsound, Value};
use trapline_record::maps::{GONE, StackTable};

use super::maps::Map;
use super::search::{Ends, Key};
use crate::hit::input;

/// Outcome: the stack has an entry.
pub(crate) const FOUND: u8 = 1;
/// Outcome: there is no room for it (K5).
pub(crate) const NO_ROOM: u8 = 2;

/// K2, K3 and K5. Outcome 0: the result is the entry, to be filled.
///
/// # Errors
/// None, for tables that there are.
pub(crate) fn entry(table: StackTable) -> Result<Program, Unsound> {
    let mut builder = Builder::new();
    let map = Map { line: input::STACKS, shape: table.shape(), beyond: None };
    let (number, takes) = (builder.input(input::STACK), Some((GONE, None)));
    let ends = Ends { found: Target::Outcome(FOUND), missing: Target::Outcome(NO_ROOM), full: None };
    let entry = map.search(&mut builder, Key::of(&[number]), takes, ends);
    builder.finish(Some(Value::Var(entry)))
}

#[cfg(test)]
mod tests;
