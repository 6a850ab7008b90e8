//! Exclusive sequences: from `ldxr` to `stxr`.
//!
//! In: the words of a whole function, and one of them. Out: whether it is inside such a sequence. A trap
//! clears the monitor that the load set, and so may a stub's own stores. The store then fails, the loop tries
//! again and traps again, for ever. Branches are followed: the sequence need not be one stretch.
//! Does not: know what is outside the words given.

use super::decode::decode;
use super::verdict::{Op, Refusal, Through, Verdict};

/// Longest sequence that is looked for, in words. The architecture promises progress for 128 bytes (Arm ARM
/// B2.12.5); four times as many are allowed.
pub const REACH: usize = 128;

/// Whether a probe on `words[at]` would come between an exclusive load and its store: whether a store can be
/// reached from it (itself included) with no exclusive load and no `clrex` before. Follows both ways of a
/// branch, and goes on behind calls, for at most [`REACH`] words in either direction.
#[must_use]
pub fn in_exclusive(words: &[u32], at: usize) -> bool {
    let first = at.saturating_sub(REACH);
    let mut seen = [0_u64; 2 * REACH / 64 + 1];
    let mut open = [0_u16; 2 * REACH + 1];
    let mut count = 0;
    let mut visit = |index: usize, open: &mut [u16], count: &mut usize| {
        let Some(local) = index.checked_sub(first).filter(|l| *l <= 2 * REACH && index < words.len()) else {
            return;
        };
        let (Some(word), bit) = (seen.get_mut(local / 64), 1 << (local % 64)) else { return };
        if *word & bit == 0 {
            *word |= bit;
            if let Some(place) = open.get_mut(*count) {
                *place = local as u16;
                *count += 1;
            }
        }
    };
    visit(at, &mut open, &mut count);
    while let Some(local) = count.checked_sub(1).and_then(|top| open.get(top)) {
        count -= 1;
        let index = first + usize::from(*local);
        let Some(&word) = words.get(index) else { continue };
        match exclusive(word) {
            Some(Exclusive::Store) => return true,
            Some(Exclusive::Load) if index != at => continue,
            Some(Exclusive::Clear) => continue,
            _ => {}
        }
        let (next, target) = successors(word, index);
        next.into_iter().chain(target).for_each(|index| visit(index, &mut open, &mut count));
    }
    false
}

/// Part of an exclusive sequence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exclusive {
    Load,
    Store,
    Clear,
}

const fn exclusive(word: u32) -> Option<Exclusive> {
    match decode(word) {
        Verdict::Refuse(Refusal::Exclusive) if word >> 22 & 1 != 0 => Some(Exclusive::Load),
        Verdict::Refuse(Refusal::Exclusive) => Some(Exclusive::Store),
        _ if word & 0xFFFF_F0FF == 0xD503_305F => Some(Exclusive::Clear),
        _ => None,
    }
}

/// Where control goes from a word: to the next word, and to a direct target.
fn successors(word: u32, index: usize) -> (Option<usize>, Option<usize>) {
    let target = |offset: i32| index.checked_add_signed(offset as isize / 4);
    match decode(word) {
        Verdict::Simulate(Op::Branch { offset, link: false }) => (None, target(offset)),
        Verdict::Simulate(Op::BranchIf { offset, .. }) => (Some(index + 1), target(offset)),
        Verdict::Simulate(Op::BranchTo { through: Through::Jump | Through::Return, .. }) => (None, None),
        Verdict::OutOfLine(super::Away::Authenticated) | Verdict::Refuse(Refusal::Undefined) => (None, None),
        _ => (Some(index + 1), None),
    }
}
