//! The way from a word to a stub that no `b` reaches, and back.
//!
//! In: the stub's address, an address for an island that a `b` reaches, the displaced word. Out: the island's
//! words; the words with which the stub begins and ends.
//! Invariants: ISL-1 every register is as it was when the stub's own code begins, and again when the
//! displaced word's copy does (STUB-1). This holds inside a function as at its entry: no register is taken to
//! be free. ISL-2 the program's text is reached only by a `b`, so no landing pad is required (Arm ARM
//! D8.4.10). Does not: choose places (`code_region`).
//! x86-64's islands are one jump in padding (`padding`), so they need no code of their own.
//!
//! # The way
//!
//! | step | where | what | x16, x17 |
//! |---|---|---|---|
//! | W1 | the text | `b` to the island | the program's |
//! | W2 | the island's first half | both are pushed, the stub's address into x16, `br` | on the stack |
//! | W3 | the stub's head | both are popped | the program's |
//! | W4 | the stub | its action | the program's at its end |
//! | W5 | the stub's end | both are pushed, the address of the island's second half into x16, `br` | on the stack |
//! | W6 | the island's second half | both are popped, the displaced word's copy, `b` back behind it | the program's |
//!
//! ```text
//!   s - 32    x16, x17            <- sp at W2's and W5's `br`; x16 = where it goes
//!   s - 16    not touched: Go keeps its caller's x29 at s - 8 (GO-2)
//!   s         <- sp, the program's, at W1, W4's begin and end, and W6's end
//!
//!   island +  0   W2: AWAY = 5 words: push, movz, movk, movk, br x16
//!   island + 20   W6: pop
//!   island + 24   W6: the copy (`copy_at`), then `b` back if it goes on; LEN = 64 in all
//! ```
//!
//! So the copy lies where all copies do, within a `b` of the text, and the stub may lie anywhere. No page of
//! ours is guarded, so `br` may land on any word there.
//!
//! # Interleavings
//!
//! An island is written with the stubs, through the tracer's own mapping of the memfd, before the first word
//! of the text leads there (PATCH-4). It is unmapped with them, when all words are back. Then it is proven
//! that no thread stands in any of it, and that nothing on a stack or in a context leads there (PATCH-10). In
//! between:
//!
//! - *A thread stops at any step*: it goes on there, since all of it stays mapped while it stands there. A
//!   register that holds an address of ours is x16 at the `br` of W2 and W5, and the pc is ours then, too.
//! - *A signal arrives at any step*: its frame has that pc and lies below the pushed words. The handler
//!   returns there; one that leaves by `longjmp` leaves the stack behind, with the pushed words.
//! - *A handler that looks at the interrupted pc* finds an address of ours, as in any stub.
//! - *The tracer dies before the text leads there*: the memory is inert, and named by the journal's list of
//!   regions. After that, both halves exist, and each word is old or new (S2).
//! - *fork*: the child has both.

use trapline_insn::aarch64::{Gpr, encode};

use super::stub::{Code, NoWords};

/// Upper bound of an island's bytes: the jump away, the way back in, the longest copy, a `b`.
pub(super) const LEN: u64 = 64;
const _: () = assert!(4 * (AWAY + 1 + trapline_insn::aarch64::LONGEST + 1) as u64 <= LEN);
/// Number of words of the jump away.
const AWAY: usize = 5;
/// `stp x16, x17, [sp, #-32]!`
const PUSH: u32 = 0xA9BE_47F0;
/// `ldp x16, x17, [sp], #32`
const POP: u32 = 0xA8C2_47F0;

/// The jump to `to`, where the pushed registers are popped first. `None` beyond 48 bits, where no code of
/// ours is placed.
fn away(to: u64) -> Option<[u32; AWAY]> {
    let half = |nth: u32| (to >> (16 * nth)) as u16;
    let (low, mid, high) = (half(0), half(1), half(2));
    let x16 = Gpr::X16;
    let words = [
        PUSH,
        encode::movz(x16, low, 0),
        encode::movk(x16, mid, 1),
        encode::movk(x16, high, 2),
        encode::br(x16),
    ];
    (to >> 48 == 0).then_some(words)
}

/// Address of the copy that the island at `island` holds.
pub(super) const fn copy_at(island: u64) -> u64 {
    island + 4 * (AWAY as u64 + 1)
}

/// The island's words: the jump to the stub at `stub`, and the copy with the jump `back`, if it goes on.
/// `None` if a `b` does not reach it.
pub(super) fn words(island: u64, stub: u64, copy: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
    let mut words = away(stub)?.to_vec();
    words.push(POP);
    words.extend(copy);
    if let Some(back) = back {
        words.push(encode::b(island + 4 * words.len() as u64, back)?);
    }
    Some(words)
}

/// The end of a word's last stub: the jump to the island's second half.
pub(super) fn back_to(island: u64) -> Option<[u32; AWAY]> {
    away(island + 4 * AWAY as u64)
}

/// A stub that begins with W3 if an island leads to it.
#[derive(Debug)]
pub(super) struct IslandStub<C> {
    stub: C,
    far: bool,
}

/// Address at which the code of a stub begins, with or without an island that leads to it.
pub(super) const fn begins(at: u64, far: bool) -> u64 {
    at + if far { 4 } else { 0 }
}

impl<C> IslandStub<C> {
    /// `stub` was begun at the address that [`begins`] returns.
    pub(super) const fn new(stub: C, far: bool) -> Self {
        Self { stub, far }
    }
}

impl<C: Code> Code for IslandStub<C> {
    fn displaced_at(&self) -> u64 {
        self.stub.displaced_at()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
        let mut words = self.stub.finish(displaced, back)?;
        if self.far {
            words.insert(0, POP);
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::{LEN, POP, PUSH, away, back_to, copy_at, words};
    use trapline_insn::aarch64::encode;

    const ISLAND: u64 = 0x4000_0000;
    const STUB: u64 = 0xFFFF_1234_5678;

    #[test]
    fn both_halves_are_left_with_what_they_pushed() {
        let copy = [encode::NOP; 2];
        let back = ISLAND + 0x10_0004;
        let words = words(ISLAND, STUB, &copy, Some(back)).expect("in reach");
        let lands = words.iter().position(|word| *word == POP).expect("a second half");
        assert_eq!(words.iter().filter(|word| [PUSH, POP].contains(word)).count(), 2);
        assert_eq!(copy_at(ISLAND), ISLAND + 4 * (lands as u64 + 1));
        assert_eq!(words[lands + 1..lands + 3], copy);
        assert_eq!(words.last().copied(), encode::b(ISLAND + 4 * (words.len() as u64 - 1), back));
        assert_eq!(back_to(ISLAND), away(ISLAND + 4 * lands as u64));
        assert!(4 * words.len() as u64 <= LEN);
        // movz, movk, movk: each half at its place.
        let halves = words[1..4].iter().map(|word| u64::from(word >> 5 & 0xFFFF));
        assert_eq!((0..).zip(halves).map(|(nth, half)| half << (16 * nth)).sum::<u64>(), STUB);
    }

    #[test]
    fn what_is_too_far_is_none() {
        assert_eq!(words(ISLAND, STUB, &[], Some(ISLAND + (128 << 20) + 64)), None);
        assert_eq!(words(ISLAND, 1 << 48, &[], None), None);
    }
}
