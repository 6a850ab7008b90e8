//! System calls of a program's own, by `svc` instructions: see `crate::system_calls`.
//!
//! In: an image. Out: for each call that may change a fact a word before it, and where number and arguments come
//! from there. SYS-1: a patch is one word, and the call itself takes none. That word takes a patch wherever it is
//! planned: it is no landing pad, stands in no exclusive sequence, and cannot fault.
//! Does not: look at words that no branch leads to, as they may be data. If the function jumps through a register,
//! all its words count as code.
//!
//! ```text
//!   ldr x5, [sp, #56]   ◀ held here: the number is in x8, the arguments are in x0 and x1       (Go)
//!   svc #0
//!
//!   mov w0, #26
//!   mov x8, #167        ◀ held here: the number is 167, the arguments are 26 and x1            (C)
//!   svc #0
//! ```

use trapline_image::{FunctionIndex, Image};
use trapline_insn::aarch64::{Gpr, Origins, Verdict, decode, in_exclusive, landing_pad};
use trapline_insn::origin::Origin;
use trapline_record::Svma;

use super::function::code;
use super::function::exits::{Goes, goes, landings};
use super::stub::NUMBERS;
use super::supported::may_fault;

/// Number of words before a call that are looked at.
const MOST: usize = 32;

/// `svc`, with any number of its own: the kernel looks at x8 alone.
const fn is_call(word: u32) -> bool {
    word & 0xFFE0_001F == 0xD400_0001
}

/// The calls that may change a fact: the function, the word at which each can be held, and where number and
/// arguments come from there.
pub(crate) fn calls(image: &Image) -> Vec<(FunctionIndex, Svma, [Origin; 3])> {
    let mut functions: Vec<FunctionIndex> = Vec::new();
    for &(start, len) in image.text_ranges() {
        let (words, _) = image.text(start, len).unwrap_or_default().as_chunks::<4>();
        let calls = (0..).zip(words).filter(|(_, word)| is_call(u32::from_le_bytes(**word)));
        functions.extend(calls.filter_map(|(nth, _): (u64, _)| image.function_at(start + 4 * nth)));
    }
    functions.sort_unstable();
    functions.dedup();
    functions.into_iter().flat_map(|function| calls_in(image, function)).collect()
}

fn calls_in(image: &Image, function: FunctionIndex) -> Vec<(FunctionIndex, Svma, [Origin; 3])> {
    let at = image.function(function).start;
    let Some((start, words)) = code(image, Some(function), at) else { return Vec::new() };
    let found = words_with_calls(&words, &landings(image, start, words.len()));
    found.into_iter().map(|(index, origins)| (function, start + 4 * index as u64, origins)).collect()
}

/// Indexes of the words at which the calls of a function can be held, with the origins there.
fn words_with_calls(words: &[u32], landings: &[usize]) -> Vec<(usize, [Origin; 3])> {
    let runs = reached(words, landings);
    let is_target = targets(words, landings);
    let calls = (0..words.len()).filter(|&index| is_call(words[index]) && runs[index]);
    let held = calls.filter_map(|call| {
        let known = before(words, &is_target, call);
        // Places are known by their addresses there, and by their indexes here.
        let (at, origins) = NUMBERS.nearest(&known, |at| takes_patch(words, at.0 as usize))?;
        Some((at.0 as usize, origins))
    });
    held.collect()
}

/// The words before a call, nearest first, each with the origins of number and arguments there.
fn before(words: &[u32], is_target: &[bool], call: usize) -> Vec<(Svma, [Origin; 3])> {
    let mut known = Vec::new();
    for index in (call.saturating_sub(MOST)..call).rev().take_while(|index| !is_target[index + 1]) {
        let Some(origins) = Origins::over(&words[index..call]) else { break };
        known.push((Svma(index as u64), [Gpr::X8, Gpr::X0, Gpr::X1].map(|register| origins.of(register))));
    }
    known
}

fn takes_patch(words: &[u32], index: usize) -> bool {
    let word = words[index];
    let is_movable = landing_pad(word).is_none() && !matches!(decode(word), Verdict::Refuse(_));
    is_movable && !may_fault(word) && !in_exclusive(words, index)
}

/// Where a branch leads from a word, if that is inside the function.
fn target(words: &[u32], index: usize) -> Option<usize> {
    let (Goes::Either(offset) | Goes::To(offset)) = goes(words[index]) else { return None };
    index.checked_add_signed(offset as isize / 4).filter(|to| *to < words.len())
}

/// To which words a branch of the function leads, or what the system does.
fn targets(words: &[u32], landings: &[usize]) -> Vec<bool> {
    let mut found = vec![false; words.len()];
    let branches = (0..words.len()).filter_map(|index| target(words, index));
    branches.chain(landings.iter().copied()).for_each(|to| found[to] = true);
    found
}

/// Which words run.
fn reached(words: &[u32], landings: &[usize]) -> Vec<bool> {
    let mut found = vec![false; words.len()];
    let mut open = [landings, &[0]].concat();
    while let Some(index) = open.pop() {
        if found.get(index).is_none_or(|found| *found) {
            continue;
        }
        found[index] = true;
        match goes(words[index]) {
            Goes::On => open.push(index + 1),
            Goes::Either(_) => open.extend(target(words, index).into_iter().chain([index + 1])),
            Goes::To(_) => open.extend(target(words, index)),
            Goes::Back | Goes::Nowhere => {}
            Goes::Anywhere => return vec![true; words.len()],
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use trapline_insn::origin::Origin::{Constant, Register, Unknown};

    use super::words_with_calls;

    const SVC: u32 = 0xD400_0001;
    const RET: u32 = 0xD65F_03C0;
    /// `mov x8, #167`
    const PRCTL: u32 = 0xD280_14E8;
    /// `mov w0, #26`
    const TSC: u32 = 0x5280_0340;

    #[test]
    fn a_call_is_held_at_the_nearest_word_that_takes_a_patch() {
        let known = [Constant(167), Constant(26), Register(1)];
        assert_eq!(words_with_calls(&[TSC, PRCTL, SVC, RET], &[]), [(1, known)]);
        // paciasp in between; another call.
        assert_eq!(words_with_calls(&[TSC, PRCTL, 0xD503_233F, SVC, RET], &[]), [(1, known)]);
        let getpid = 0xD280_1588;
        assert_eq!(words_with_calls(&[TSC, getpid, SVC, RET], &[]), []);
        // ldr x8, [x2]: where it could be held, its number is not known.
        assert_eq!(words_with_calls(&[TSC, 0xF940_0048, SVC, RET], &[]), []);
        // ldr x1, [x2]: held behind it, in front of the number.
        let held = words_with_calls(&[TSC, 0xF940_0041, PRCTL, SVC, RET], &[]);
        assert_eq!(held, [(2, known)]);
        // ldr x1, [x2] last: no patch may be there, as it might fault at the copy.
        let held = words_with_calls(&[TSC, PRCTL, 0xF940_0041, SVC, RET], &[]);
        assert_eq!(held, [(1, [Constant(167), Constant(26), Unknown])]);
    }

    #[test]
    fn what_a_branch_leads_to_begins_a_stretch() {
        // cbz x1: to the third word, to the third word, to the call.
        assert_eq!(words_with_calls(&[0xB400_0041, TSC, PRCTL, SVC, RET], &[])[0].0, 2);
        let held = words_with_calls(&[TSC, 0xB400_0021, PRCTL, SVC, RET], &[]);
        assert_eq!(held, [(2, [Constant(167), Register(0), Register(1)])]);
        assert_eq!(words_with_calls(&[0xB400_0061, TSC, PRCTL, SVC, RET], &[]), []);
        // The system resumes there.
        assert_eq!(words_with_calls(&[TSC, PRCTL, SVC, RET], &[2]), []);
    }

    #[test]
    fn what_nothing_leads_to_may_be_data() {
        let data = [RET, TSC, PRCTL, SVC];
        assert_eq!(words_with_calls(&data, &[]), []);
        assert_eq!(words_with_calls(&data, &[1]).len(), 1);
        // br x16: it may lead anywhere.
        assert_eq!(words_with_calls(&[0xD61F_0200, TSC, PRCTL, SVC], &[]).len(), 1);
    }
}
