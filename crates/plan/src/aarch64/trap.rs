//! One word under a trap: what is done for it at a hit.
//!
//! In: the words of a function, one of them. Out: whether it is simulated or needs a copy, or a [`Refusal`].
//! Invariants: PLAN-4.
//! A trap may stand on a landing pad: every branch may land on `brk` (Arm ARM D8.4.10), and the pad is run
//! behind it.
//! x86-64 displaces the instruction into a stub then, as for a jump (`site::Reach::Trap`).
//! Does not: make the copy (`trapline_runtime::aarch64::copies`), or choose where it lies
//! ([`code_region`](super::code_region)).

use trapline_insn::aarch64::{Immovable, Op, Verdict, decode, in_exclusive, relocate};

use super::refusal::Refusal;
use super::site::PatchedWord;

/// What is done for a trapped word at a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrapPlan {
    /// It is simulated.
    Simulate(Op),
    /// A copy of it runs. If control comes back from the copy, it must lie within reach of a branch.
    Copy {
        /// Whether control comes back from it.
        comes_back: bool,
    },
}

/// What is done for `place`'s word at a hit.
///
/// # Errors
/// Why no trap may stand there.
pub fn trapped(place: &PatchedWord<'_>) -> Result<TrapPlan, Refusal> {
    let missing = Refusal::NoWord { start: place.start, index: place.index };
    let &word = place.words.get(place.index).ok_or(missing)?;
    let at = place.start.wrapping_add(4 * place.index as u64);
    let immovable = |why| Refusal::Immovable { at, word, why };
    let verdict = decode(word);
    if let Verdict::Refuse(why) = verdict {
        return Err(immovable(why.into()));
    }
    if in_exclusive(place.words, place.index) {
        return Err(Refusal::Exclusive { at, word });
    }
    match verdict {
        Verdict::Simulate(op) => Ok(TrapPlan::Simulate(op)),
        // This is tried at its own address: whether it can be moved at all. Where to is tried when there is a
        // place for it.
        _ => match relocate(word, at, at, place.options) {
            Ok(moved) => Ok(TrapPlan::Copy { comes_back: moved.falls_through }),
            Err(Immovable::OutOfReach { .. }) => Ok(TrapPlan::Copy { comes_back: true }),
            Err(why) => Err(immovable(why)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{PatchedWord, Refusal, TrapPlan, trapped};
    use trapline_insn::aarch64::{Immovable, Options, Refusal as Why, encode};

    const START: u64 = 0x40_0000;
    const RET: u32 = 0xD65F_03C0;

    fn at(words: &[u32], index: usize) -> Result<TrapPlan, Refusal> {
        trapped(&PatchedWord { words, start: START, index, options: Options::default() })
    }

    #[test]
    fn most_words_are_simulated_or_copied() {
        // nop; stp x29, x30, [sp, #-16]!; bti c; ret.
        for word in [encode::NOP, 0xA9BF_7BFD, 0xD503_245F, RET] {
            assert!(matches!(at(&[word, RET], 0), Ok(TrapPlan::Simulate(_))), "{word:08x}");
        }
        // mul x0, x0, x1; paciasp; ldr d0 of a literal.
        for word in [0x9B01_7C00, 0xD503_233F, 0x5C00_0040] {
            assert_eq!(at(&[word, RET], 0), Ok(TrapPlan::Copy { comes_back: true }), "{word:08x}");
        }
        // retaa.
        assert_eq!(at(&[0xD65F_0BFF], 0), Ok(TrapPlan::Copy { comes_back: false }));
    }

    #[test]
    fn what_takes_no_trap_is_refused_by_name() {
        for (word, why) in [
            (0xD400_0001, Why::SystemCall),
            (0, Why::Undefined),
            (encode::BRK, Why::Breakpoint),
            (0xC85F_7C01, Why::Exclusive),
        ] {
            let expected = Refusal::Immovable { at: START, word, why: Immovable::Refused(why) };
            assert_eq!(at(&[word, RET], 0), Err(expected));
        }
        // ldxr, add, stxr, cbnz.
        let sequence = [0xC85F_7C01, 0x9100_0421, 0xC802_7C01, 0x35FF_FFA2, RET];
        assert_eq!(at(&sequence, 1), Err(Refusal::Exclusive { at: START + 4, word: sequence[1] }));
        assert!(at(&sequence, 4).is_ok());
        assert_eq!(at(&[RET], 1), Err(Refusal::NoWord { start: START, index: 1 }));
    }
}
