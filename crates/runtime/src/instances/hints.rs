//! Guesses: which instance a stack pointer had last. The protocol stands in [`instances`](super).
//!
//! In: stack pointers. Out: words. Does not: know whether a guess is right.

use crate::sync::{AtomicU64, Relaxed};

/// One word: 48 bits of a stack pointer, 16 of an instance's number + 1. 0: nothing is known.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Hint(AtomicU64);

/// Bits of an instance.
pub(crate) const NUMBER_BITS: u32 = 16;
/// In place of an instance: nobody waits for this call.
pub(crate) const NOBODY: u64 = u16::MAX as u64;
/// Where a stack pointer's hint lies, in bytes: that times 0.65, so that 16 bytes of stack have a hint of their own and a page's lie together, while stacks
/// that are megabytes apart come to lie apart (a rotation by an irrational number, nearly: Knuth, TAOCP 3, 6.4).
pub(crate) const HINT_SPREAD: u64 = 42_893;
pub(crate) const HINT_SHIFT: u32 = 16;
/// The same of what else a line is for.
const OTHER_SPREAD: u64 = 0x61c8_8647;
/// Bytes of hints that are looked at together.
pub(crate) const LINE_LEN: usize = 64;
/// And of one (loom's take more).
const HINT_LEN: usize = size_of::<u64>();

/// What a hint says of a stack pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    /// This instance had it.
    Number(u32),
    /// Nobody waits.
    Nobody,
    /// Nothing.
    Nothing,
}

impl Hint {
    pub(crate) fn says(&self, sp: u64) -> Said {
        let word = self.0.load(Relaxed);
        match word & NOBODY {
            _ if word == 0 || word >> NUMBER_BITS != sp << NUMBER_BITS >> NUMBER_BITS => Said::Nothing,
            NOBODY => Said::Nobody,
            number => Said::Number(number as u32 - 1),
        }
    }
    /// The instance or slot that it names, whose stack pointer ever that had.
    pub(crate) fn named(&self) -> Option<u32> {
        match self.0.load(Relaxed) & NOBODY {
            0 | NOBODY => None,
            number => Some(number as u32 - 1),
        }
    }
    pub(crate) fn number(&self, sp: u64, number: u32) {
        self.0.store(sp << NUMBER_BITS | (u64::from(number) + 1), Relaxed);
    }
    pub(crate) fn nobody(&self, sp: u64) {
        self.0.store(sp << NUMBER_BITS | NOBODY, Relaxed);
    }
    /// Whether it says nothing of any.
    pub(crate) fn is_clear(&self) -> bool {
        self.0.load(Relaxed) == 0
    }
    pub(crate) fn clear(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Hints in lines of eight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hints(&'static [Hint]);

impl Hints {
    /// Over zeroed words; their number is a power of two.
    pub(crate) const fn new(hints: &'static [Hint]) -> Option<Self> {
        if hints.len().is_power_of_two() { Some(Self(hints)) } else { None }
    }
    /// Bytes of all but one.
    pub(crate) const fn mask(&self) -> u64 {
        ((self.0.len() - 1) * HINT_LEN) as u64
    }
    /// The first.
    pub(crate) const fn first(&self) -> *const Hint {
        self.0.as_ptr()
    }
    /// The cache line of a stack pointer and something else.
    #[inline]
    pub(crate) fn line(&self, sp: u64, other: u64) -> &'static [Hint] {
        const LINE: usize = LINE_LEN / HINT_LEN;
        let sum = sp.wrapping_mul(HINT_SPREAD).wrapping_add(other.wrapping_mul(OTHER_SPREAD));
        let at = (sum >> HINT_SHIFT & self.mask()) as usize / HINT_LEN;
        let first = at & !(LINE - 1);
        self.0.get(first..(first + LINE).min(self.0.len())).unwrap_or_default()
    }
}
