//! A row that keeps the sum, the least and the greatest of its hits' values.
//!
//! In: a row. Out: what its hits so far gave, as a whole ([`read`]). Does not: add, or know the values' type.
//!
//! ```text
//!   row          key           row + 16  owner, or not used
//!   row + 8      n: hits       row + 24  LOCK: not 0 while one thread writes, or the reader looks
//!   row + 32     version 0: sum (two words, the low one first), least, greatest
//!   row + 64     version 1: the same
//! ```
//!
//! What the first n hits gave is in version n mod 2. A hit writes the other version, from this one, and then adds one
//! to n (`plan::programs::sums`). So whatever interrupts it, n and its version belong together. The sum has 128 bits,
//! so it does not overflow: 2^63 hits of 2^64 are fewer than 2^127.
//!
//! | step | reader | hits meanwhile |
//! |---|---|---|
//! | D1 | n is loaded | - |
//! | D2 | the words of version n mod 2 are loaded | the next hit writes the other version; |
//! | | | the one behind it writes this one, and before that n has changed |
//! | D3 | n is loaded again: the same n: what D2 loaded is what n hits gave; else D1 again, at most [`TRIES`] times | - |
//! | D4 | it never was the same: LOCK is | hits that find LOCK go to the key's next row; |
//! | | claimed, D1 to D3, and LOCK = 0 | those that had looked at it before add to this one, a few at most |
//!
//! D4 is for rows with a hit every few nanoseconds. It holds no thread up, and a tracer that ends in it leaves a row
//! that gets no more hits. If another thread has LOCK, D1 to D3 go on: it changes the row once.
//!
//! Loads have acquire order, and n is seen before what is written behind it. So D3 sees another n if D2 saw a word of
//! a later hit.

use super::TAKING;
use crate::view::View;

/// Length of a row in bytes.
pub const ROW: u64 = 128;
/// Byte offset in a row of the word that is claimed by one thread at a time.
pub const LOCK: u64 = 24;
/// Byte offsets in a row of both versions.
pub const VERSIONS: [u64; 2] = [32, 64];
/// Byte offsets in a version: the sum's low and high word, the least value, the greatest.
pub const WORDS: [u64; 4] = [0, 8, 16, 24];
/// How often a reader looks at a row that changes under it.
pub const TRIES: u32 = 256;

/// What the hits of a row gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summed {
    /// Their sum. Values without a sign were added as such.
    pub sum: i128,
    /// The least value, in its type.
    pub least: u64,
    /// The greatest.
    pub greatest: u64,
}

/// Number of hits, and what they gave; `None` if the row was never still.
#[must_use]
pub fn read(view: View<'_>, row: u64) -> Option<(u64, Summed)> {
    let look = || {
        let hits = view.get(row + 8);
        let version = row + VERSIONS[(hits % 2) as usize];
        let [low, high, least, greatest] = WORDS.map(|at| view.get(version + at));
        let sum = (u128::from(high) << 64 | u128::from(low)).cast_signed();
        (view.get(row + 8) == hits && hits & TAKING == 0).then_some((hits, Summed { sum, least, greatest }))
    };
    let looks = || (0..TRIES).find_map(|_| look());
    looks().or_else(|| {
        let is_claimed = view.claim(row + LOCK, TAKING);
        let found = looks();
        if is_claimed {
            view.set(row + LOCK, 0);
        }
        found
    })
}
