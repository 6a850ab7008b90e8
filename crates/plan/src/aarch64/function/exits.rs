//! Where a function returns.
//!
//! In: the words of a function, and where it goes on without a branch (an exception lands, Go resumes after a
//! panic). Out: the words at which it returns to its caller, or why they cannot all be known. Only words are
//! examined that can be reached from there or from the entry: others may be data. A branch to another
//! function is a way out too, if requested ([`ways_out`]); what returns there is not examined.

use trapline_image::Image;
use trapline_insn::aarch64::{Away, Op, Refusal as Why, Through, Verdict, decode};
use trapline_record::Svma;

use crate::aarch64::refusal::Refusal;
use crate::machine::ExitKind;

/// Where control goes from a word.
pub(in crate::aarch64) enum Goes {
    /// To the next one.
    On,
    /// To the next one, or by this many bytes.
    Either(i32),
    /// By this many bytes.
    To(i32),
    /// Back to the caller.
    Back,
    /// Through a register.
    Anywhere,
    /// Nowhere: it traps.
    Nowhere,
}

pub(in crate::aarch64) fn goes(word: u32) -> Goes {
    /// Whether a word is `retaa` or `retab`, which belong to the branches that authenticate (Arm ARM C4.1).
    const fn returns(word: u32) -> bool {
        word & 0xFFFF_FBFF == 0xD65F_0BFF
    }
    match decode(word) {
        Verdict::Simulate(Op::Branch { offset, link: false }) => Goes::To(offset),
        Verdict::Simulate(Op::BranchIf { offset, .. }) => Goes::Either(offset),
        Verdict::Simulate(Op::BranchTo { through: Through::Return, .. }) => Goes::Back,
        Verdict::Simulate(Op::BranchTo { through: Through::Jump, .. }) => Goes::Anywhere,
        Verdict::OutOfLine(Away::Authenticated) if returns(word) => Goes::Back,
        Verdict::OutOfLine(Away::Authenticated) => Goes::Anywhere,
        Verdict::Refuse(Why::Undefined | Why::Breakpoint | Why::Halt) => Goes::Nowhere,
        _ => Goes::On,
    }
}

/// Whether a word calls. What is called at a function's end does not return.
pub(in crate::aarch64) fn is_call(word: u32) -> bool {
    matches!(
        decode(word),
        Verdict::Simulate(Op::Branch { link: true, .. } | Op::BranchTo { through: Through::Call, .. })
            | Verdict::Refuse(Why::AuthenticatedCall)
    )
}

/// Those of the `count` words from `start` on that run though no branch leads there.
#[must_use]
pub fn landings(image: &Image, start: Svma, count: usize) -> Vec<usize> {
    let (all, end) = (image.landings(), start + 4 * count as u64);
    let own = all.partition_point(|at| *at < start)..all.partition_point(|at| *at < end);
    all.get(own).unwrap_or_default().iter().map(|at| ((*at - start) / 4) as usize).collect()
}

/// The words of a function that begins at `start` at which it returns to its caller, in order. No branch
/// leads to the words of `landings`, which run too.
///
/// # Errors
/// If it may leave in another way, or nowhere.
pub fn exits(words: &[u32], start: u64, landings: &[usize]) -> Result<Vec<usize>, Refusal> {
    let found = ways_out(words, start, landings, |_| false)?;
    Ok(found.into_iter().map(|(index, _)| index).collect())
}

/// The words at which a function that begins at `start` is left, in order: it returns, or jumps to where
/// another function begins (`is_other`).
///
/// # Errors
/// If it may leave in another way, or nowhere.
pub fn ways_out(
    words: &[u32],
    start: u64,
    landings: &[usize],
    is_other: impl Fn(u64) -> bool,
) -> Result<Vec<(usize, ExitKind)>, Refusal> {
    let mut seen = vec![false; words.len()];
    let (mut open, mut found) = ([landings, &[0]].concat(), Vec::new());
    while let Some(index) = open.pop() {
        let Some(&word) = words.get(index) else {
            return Err(Refusal::NoWord { start, index });
        };
        if std::mem::replace(&mut seen[index], true) {
            continue;
        }
        let at = start.wrapping_add(4 * index as u64);
        let inside = |offset: i32| {
            let to = index.checked_add_signed(offset as isize / 4).filter(|to| *to < words.len());
            to.ok_or(Refusal::LeavesByJump { at, word, to: at.wrapping_add_signed(i64::from(offset)) })
        };
        let (on, to) = match goes(word) {
            Goes::On => (true, None),
            Goes::Either(offset) => (true, Some(inside(offset)?)),
            Goes::To(offset) => match inside(offset) {
                Err(Refusal::LeavesByJump { to, .. }) if is_other(to) => {
                    found.push((index, ExitKind::Tail));
                    (false, None)
                }
                to => (false, Some(to?)),
            },
            Goes::Nowhere => (false, None),
            Goes::Anywhere => return Err(Refusal::LeavesAnywhere { at, word }),
            Goes::Back => {
                found.push((index, ExitKind::Return));
                (false, None)
            }
        };
        open.extend(to);
        if on && index + 1 < words.len() {
            open.push(index + 1);
        } else if on && !is_call(word) {
            return Err(Refusal::RunsOn { at, word });
        }
    }
    if found.is_empty() {
        return Err(Refusal::NeverReturns { start });
    }
    found.sort_unstable_by_key(|one| one.0);
    Ok(found)
}

/// Whether a jump from `from` to `to` leaves the function for another one: `to` is the beginning of a known
/// function, or lies in code that belongs to none, such as the linkage table. A piece of code with unwind
/// information that belongs to no function may be the function's own.
pub(super) fn begins_elsewhere(image: &Image, from: Svma, to: Svma) -> bool {
    let within = |&(start, len): &(Svma, u64)| start <= to && to < start + len;
    match image.function_at(to) {
        Some(other) => to != from && image.function(other).start == to,
        None => image.text_ranges().iter().any(within) && !image.fragments().iter().any(within),
    }
}

/// For each function, an upper bound of the words by which it is left: returns, and jumps out of it.
/// [`CodeMap::exit_bound`](crate::CodeMap::exit_bound) returns it.
pub(crate) fn exit_bounds(image: &Image) -> Vec<u32> {
    let leaves = |index: usize, words: usize, word: u32| {
        let far = ((word << 6).cast_signed() >> 6) as isize;
        let jumps = word >> 26 == 0b00_0101 && index.checked_add_signed(far).is_none_or(|to| to >= words);
        // `ret`, `retaa`, `retab`.
        jumps || word & 0xFFFF_FC1F == 0xD65F_0000 || word & 0xFFFF_FBFF == 0xD65F_0BFF
    };
    let of = |f: &trapline_image::Function| {
        let words = image.text(f.start, f.len).unwrap_or(&[]).as_chunks::<4>().0;
        let exits = words
            .iter()
            .enumerate()
            .filter(|&(index, word)| leaves(index, words.len(), u32::from_le_bytes(*word)));
        exits.count() as u32
    };
    image.functions().iter().map(of).collect()
}

/// Whether a branch of the function leads to its beginning, or to the word at `entry`.
pub(super) fn is_looped(words: &[u32], entry: usize) -> bool {
    (0..).zip(words).any(|(index, &word): (isize, _)| match decode(word) {
        Verdict::Simulate(Op::Branch { offset, link: false } | Op::BranchIf { offset, .. }) => {
            let to = index + offset as isize / 4;
            to == 0 || usize::try_from(to) == Ok(entry)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::{ExitKind, Refusal, exits, is_looped, ways_out};
    use trapline_insn::aarch64::encode;

    const START: u64 = 0x40_0000;
    const NOP: u32 = encode::NOP;
    const RET: u32 = 0xD65F_03C0;
    const RETAA: u32 = 0xD65F_0BFF;
    const BR_X1: u32 = 0xD61F_0020;
    const UDF: u32 = 0;

    fn b(words: i32) -> u32 {
        0x1400_0000 | words.cast_unsigned() & 0x03FF_FFFF
    }
    fn bl(words: i32) -> u32 {
        b(words) | 1 << 31
    }
    fn cbz(words: i32) -> u32 {
        0xB400_0000 | (words.cast_unsigned() & 0x7_FFFF) << 5
    }

    #[test]
    fn every_return_that_can_be_reached_is_found() {
        assert_eq!(exits(&[NOP, RET], START, &[]), Ok(vec![1]));
        assert_eq!(exits(&[cbz(3), NOP, RET, NOP, RETAA], START, &[]), Ok(vec![2, 4]));
        // Behind a jump: data that looks like a return, and then code.
        assert_eq!(exits(&[b(2), RET, NOP, RET], START, &[]), Ok(vec![3]));
        // A loop, and a call that does not come back at the end.
        assert_eq!(
            exits(&[cbz(3), b(-1), RET, bl(100)], START, &[]),
            Err(Refusal::NeverReturns { start: START })
        );
        assert_eq!(exits(&[cbz(2), RET, bl(100)], START, &[]), Ok(vec![1]));
    }

    /// As Go's runtime does behind a recovered panic: `bl deferreturn; ret`, and the way to a larger stack
    /// behind that.
    #[test]
    fn what_no_branch_leads_to_may_return() {
        let words = [cbz(4), RET, bl(100), RET, bl(100), b(-5)];
        assert_eq!(exits(&words, START, &[]), Ok(vec![1]));
        assert_eq!(exits(&words, START, &[2]), Ok(vec![1, 3]));
    }

    #[test]
    fn other_ways_out_are_named() {
        let refused = |words: &[u32], why| assert_eq!(exits(words, START, &[]), Err(why));
        refused(&[cbz(2), b(9), RET], Refusal::LeavesByJump { at: START + 4, word: b(9), to: START + 40 });
        refused(&[cbz(2), BR_X1, RET], Refusal::LeavesAnywhere { at: START + 4, word: BR_X1 });
        refused(&[cbz(2), RET, NOP], Refusal::RunsOn { at: START + 8, word: NOP });
        refused(&[NOP, UDF], Refusal::NeverReturns { start: START });
        refused(&[], Refusal::NoWord { start: START, index: 0 });
    }

    #[test]
    fn a_jump_to_another_function_is_a_way_out() {
        let other = |to| to == START + 40;
        let found = ways_out(&[cbz(2), b(9), RET], START, &[], other);
        assert_eq!(found, Ok(vec![(1, ExitKind::Tail), (2, ExitKind::Return)]));
        let why = Refusal::LeavesByJump { at: START + 4, word: b(8), to: START + 36 };
        assert_eq!(ways_out(&[cbz(2), b(8), RET], START, &[], other), Err(why));
        // It leaves only if it is taken, so leaving and staying would have to be distinguished.
        let why = Refusal::LeavesByJump { at: START, word: cbz(10), to: START + 40 };
        assert_eq!(ways_out(&[cbz(10), RET], START, &[], other), Err(why));
    }

    #[test]
    fn loops_lead_to_the_entry() {
        const RET: u32 = 0xD65F_03C0;
        let b = |from, to| encode::b(from, to).expect("near");
        assert!(!is_looped(&[encode::NOP, RET], 0));
        assert!(!is_looped(&[encode::NOP, encode::NOP, b(8, 4), RET], 0));
        assert!(is_looped(&[encode::NOP, encode::NOP, b(8, 0), RET], 0));
        // Behind a landing pad, or at it.
        assert!(is_looped(&[encode::NOP, encode::NOP, b(8, 4), RET], 1));
        assert!(is_looped(&[encode::NOP, encode::NOP, b(8, 0), RET], 1));
    }
}
