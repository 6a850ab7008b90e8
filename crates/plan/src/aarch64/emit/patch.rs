//! One patched word: what may be patched, how the stub is reached, and how the word may be written.
//!
//! In: the words of a function, one of them, addresses for a stub and an island. Out: a [`Patch`], or a
//! [`Refusal`]. Invariants: PLAN-4: each refusal names address, word and rule. Landing pads (`bti`,
//! `paciasp`) stay in place: [`entry_index`] returns the word behind them.
//!
//! ```text
//!   Branch   at: b stub      stub: action, copy of the word, b at + 4
//!   Island   at: b island    stub: pop, action, to island + 20
//!                            island: to stub; + 20: pop, copy of the word, b at + 4
//! ```
//!
//! The last `b` is there only if the copy falls through. All registers at the copy are the program's
//! (`island`).
//! Does not: choose where stubs lie, or write anything.

use trapline_insn::aarch64::{Verdict, decode, encode, in_exclusive, landing_pad, may_patch_live, relocate};

use crate::aarch64::island::{self, IslandStub};
use crate::aarch64::refusal::Refusal;
use crate::aarch64::site::PatchedWord;
use crate::aarch64::stub::{self, Code, Machine};

/// How the word leads to the stub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tactic {
    /// By one `b`.
    Branch,
    /// By one `b` to an island in reach. The island leads to the stub, and holds the copy to which the stub
    /// returns (the module `island`).
    Island {
        /// The island's words.
        words: Vec<u32>,
    },
}

/// One patched word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patch {
    /// Its address.
    pub at: u64,
    /// The present word.
    pub old: u32,
    /// The word that replaces it.
    pub new: u32,
    /// Threads may run the word while it is replaced (Arm ARM B2.2.5). If false, all must be stopped.
    pub live: bool,
    /// How the word leads to the stub.
    pub tactic: Tactic,
    /// The stub's words.
    pub stub: Vec<u32>,
}

/// Index of the word that gets the patch for a function's entry: the first one that is no landing pad. A
/// `brk` does not count as a pad here: it is another tool's trap.
#[must_use]
pub fn entry_index(words: &[u32]) -> usize {
    let is_pad = |word: &&u32| landing_pad(**word).is_some() && !matches!(decode(**word), Verdict::Refuse(_));
    words.iter().take_while(is_pad).count()
}

/// Patches `place` so that each execution adds one to the counter at `word`, by a stub at `stub`; over an
/// `island` if one is given.
///
/// # Errors
/// Why it cannot be patched.
pub fn patch(
    place: &PatchedWord<'_>,
    machine: &Machine,
    word: u64,
    stub: u64,
    island: Option<u64>,
) -> Result<Patch, Refusal> {
    let far = island.is_some();
    let code = stub::count(island::begins(stub, far), machine, word, place.options.ip_free);
    patch_with(place, IslandStub::new(code, far), stub, island)
}

/// Patches `place` so that each execution runs the code that begins at `head` and ends with `code`. If an
/// `island` within reach of a `b` is given, the patch leads over it, and the code that begins at `head` is a
/// `IslandStub`.
///
/// # Errors
/// Why it cannot be patched.
pub fn patch_with(
    place: &PatchedWord<'_>,
    code: impl Code,
    head: u64,
    island: Option<u64>,
) -> Result<Patch, Refusal> {
    let missing = Refusal::NoWord { start: place.start, index: place.index };
    let &old = place.words.get(place.index).ok_or(missing)?;
    let at = place.start.wrapping_add(4 * place.index as u64);
    if landing_pad(old).is_some() && !matches!(decode(old), Verdict::Refuse(_)) {
        return Err(Refusal::LandingPad { at, word: old });
    }
    let immovable = |why| Refusal::Immovable { at, word: old, why };
    if let Verdict::Refuse(why) = decode(old) {
        return Err(immovable(why.into()));
    }
    if in_exclusive(place.words, place.index) {
        return Err(Refusal::Exclusive { at, word: old });
    }
    let far = Refusal::OutOfReach { at, stub: head };
    let new = encode::b(at, island.unwrap_or(head)).ok_or(far)?;
    let moved = relocate(old, at, island.map_or(code.displaced_at(), island::copy_at), place.options);
    let moved = moved.map_err(immovable)?;
    let back = moved.falls_through.then_some(moved.next);
    let (stub, tactic) = match island {
        None => (code.finish(moved.words(), back), Tactic::Branch),
        Some(island) => {
            let words = island::words(island, head, moved.words(), back).ok_or(far)?;
            let end = island::back_to(island).ok_or(far)?;
            (code.finish(&end, None), Tactic::Island { words })
        }
    };
    let stub = stub.map_err(|why| Refusal::of(why, at, head))?;
    Ok(Patch { at, old, new, live: may_patch_live(old, new), tactic, stub })
}

#[cfg(test)]
mod tests {
    use super::{Code, Machine, PatchedWord, Refusal, Tactic, entry_index, patch, patch_with};
    use crate::aarch64::stub::NoWords;
    use trapline_code::{NoCode, Unsound};
    use trapline_insn::aarch64::{Immovable, Options, Refusal as Why, encode};

    const NOP: u32 = encode::NOP;
    const PUSH: u32 = 0xA9BF_7BFD;
    const PACIASP: u32 = 0xD503_233F;
    const BTI_C: u32 = 0xD503_245F;
    const RET: u32 = 0xD65F_03C0;
    const START: u64 = 0x40_0000;
    const STUB: u64 = 0x50_0000;
    const MACHINE: Machine = Machine { rseq: None, lse: true, lines: 3 };

    /// A stub that lacks code.
    struct Lacking(NoCode);

    impl Code for Lacking {
        fn displaced_at(&self) -> u64 {
            STUB
        }
        fn finish(self, _: &[u32], _: Option<u64>) -> Result<Vec<u32>, NoWords> {
            Err(self.0.into())
        }
    }

    #[test]
    fn a_stub_that_lacks_code_is_refused_with_the_reason() {
        let why = NoCode::Unsound(Unsound::Commit);
        let place = PatchedWord { words: &[NOP], start: START, index: 0, options: Options::default() };
        let refused = patch_with(&place, Lacking(why), STUB, None).map(|patch| patch.new);
        assert_eq!(refused, Err(Refusal::NoCode { at: START, why }));
    }

    fn at(words: &[u32], index: usize) -> Result<super::Patch, Refusal> {
        let place = PatchedWord {
            words,
            start: START,
            index,
            options: Options { ip_free: true, ..Options::default() },
        };
        patch(&place, &MACHINE, 0x60_0000, STUB, None)
    }

    #[test]
    fn entries_are_behind_landing_pads() {
        assert_eq!(entry_index(&[PUSH, RET]), 0);
        assert_eq!(entry_index(&[BTI_C, PACIASP, PUSH]), 2);
        assert_eq!(entry_index(&[PACIASP]), 1);
        assert_eq!(entry_index(&[encode::BRK, PUSH]), 0);
        assert_eq!(at(&[BTI_C, RET], 0), Err(Refusal::LandingPad { at: START, word: BTI_C }));
        assert_eq!(at(&[BTI_C], 1), Err(Refusal::NoWord { start: START, index: 1 }));
    }

    #[test]
    fn only_a_few_words_are_patched_under_threads() {
        let patched = at(&[NOP, RET], 0).expect("a nop");
        assert_eq!((patched.at, patched.old, Some(patched.new)), (START, NOP, encode::b(START, STUB)));
        assert!(patched.live && patched.tactic == Tactic::Branch);
        assert!(!at(&[PUSH, RET], 0).expect("a push").live);
        assert!(!at(&[PUSH, RET], 1).expect("a return").live);
    }

    #[test]
    fn what_takes_no_probe_is_refused_by_name() {
        let refused = |word: u32, why: Why| {
            let expected = Refusal::Immovable { at: START, word, why: Immovable::Refused(why) };
            assert_eq!(at(&[word, RET], 0), Err(expected));
        };
        refused(0xD400_0001, Why::SystemCall);
        refused(0x0000_0000, Why::Undefined);
        refused(encode::BRK, Why::Breakpoint);
        // ldxr, add, stxr, cbnz.
        let sequence = [0xC85F_7C01, 0x9100_0421, 0xC802_7C01, 0x35FF_FFA2, RET];
        refused(sequence[0], Why::Exclusive);
        assert_eq!(at(&sequence, 1), Err(Refusal::Exclusive { at: START + 4, word: sequence[1] }));
        assert!(at(&sequence, 4).is_ok());
    }

    #[test]
    fn what_no_branch_reaches_goes_over_an_island() {
        let (far, island) = (START + (1 << 30), START + 64);
        for (index, ip_free) in [(0, false), (0, true), (1, false), (1, true)] {
            let options = Options { ip_free, ..Options::default() };
            let place = PatchedWord { words: &[PUSH, RET], start: START, index, options };
            let (at, back) = (START + 4 * index as u64, index == 0);
            let refused = Err(Refusal::OutOfReach { at, stub: far });
            assert_eq!(patch(&place, &MACHINE, far, far, None), refused);
            assert_eq!(patch(&place, &MACHINE, far, far, Some(far)), refused);
            let patched = patch(&place, &MACHINE, far, far, Some(island)).expect("over an island");
            assert_eq!(Some(patched.new), encode::b(at, island));
            let Tactic::Island { words } = patched.tactic else { panic!("{patched:?}") };
            // The copy is on the island, and what goes on behind the word goes there by a `b`.
            let copy = words.iter().position(|word| *word == patched.old).expect("the copy");
            let next = encode::b(island + 4 * (copy as u64 + 1), at + 4);
            assert_eq!(words.get(copy + 1).copied(), next.filter(|_| back));
            assert!(!patched.stub.contains(&patched.old));
        }
    }
}
