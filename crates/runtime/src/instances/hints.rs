//! Hints: which instance a stack pointer had last. [`instances`](super) describes the protocol.
//!
//! In: stack pointers. Out: words.
//! Does not: know whether a hint is right.

use crate::sync::{AtomicU64, Relaxed};

/// One word: 48 bits of a stack pointer, 16 bits of an instance's number + 1. The word 0 means that nothing
/// is known.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Hint(AtomicU64);

/// Number of bits for the instance.
pub(crate) const NUMBER_BITS: u32 = 16;
/// Value in place of an instance's number: no consumer waits for this call.
pub(crate) const NO_CONSUMER: u64 = u16::MAX as u64;
/// A stack pointer's hint lies at this byte: the stack pointer times 0.65. So each 16 bytes of stack have a
/// hint of their own, and the hints of a page lie together. Stacks that are megabytes apart get distant hints
/// (nearly a rotation by an irrational number: Knuth, TAOCP 3, 6.4).
pub(crate) const HINT_SPREAD: u64 = 42_893;
pub(crate) const HINT_SHIFT: u32 = 16;
/// The same for the second value that selects a line.
const OTHER_SPREAD: u64 = 0x61c8_8647;
/// Length in bytes of the hints that are looked at together.
pub(crate) const LINE_LEN: usize = 64;
/// Length of one hint in bytes (loom's are larger).
const HINT_LEN: usize = size_of::<u64>();

/// What a hint says about a stack pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hinted {
    /// This instance had it.
    Number(u32),
    /// No consumer waits for the call.
    NoConsumer,
    /// Nothing.
    Nothing,
}

impl Hint {
    pub(crate) fn read(&self, sp: u64) -> Hinted {
        let word = self.0.load(Relaxed);
        match word & NO_CONSUMER {
            _ if word == 0 || word >> NUMBER_BITS != sp << NUMBER_BITS >> NUMBER_BITS => Hinted::Nothing,
            NO_CONSUMER => Hinted::NoConsumer,
            number => Hinted::Number(number as u32 - 1),
        }
    }
    /// The number of the instance or trampoline that it names, for whatever stack pointer.
    pub(crate) fn named(&self) -> Option<u32> {
        match self.0.load(Relaxed) & NO_CONSUMER {
            0 | NO_CONSUMER => None,
            number => Some(number as u32 - 1),
        }
    }
    pub(crate) fn number(&self, sp: u64, number: u32) {
        self.0.store(sp << NUMBER_BITS | (u64::from(number) + 1), Relaxed);
    }
    pub(crate) fn no_consumer(&self, sp: u64) {
        self.0.store(sp << NUMBER_BITS | NO_CONSUMER, Relaxed);
    }
    /// Whether it names nothing, for any stack pointer.
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
    /// Hints in zeroed words; `None` unless their number is a power of two.
    pub(crate) const fn new(hints: &'static [Hint]) -> Option<Self> {
        if hints.len().is_power_of_two() { Some(Self(hints)) } else { None }
    }
    /// Length of all hints but one, in bytes.
    pub(crate) const fn mask(&self) -> u64 {
        ((self.0.len() - 1) * HINT_LEN) as u64
    }
    /// Address of the first hint.
    pub(crate) const fn first(&self) -> *const Hint {
        self.0.as_ptr()
    }
    /// The cache line of hints for a stack pointer and a second value.
    #[inline]
    pub(crate) fn line(&self, sp: u64, other: u64) -> &'static [Hint] {
        const LINE: usize = LINE_LEN / HINT_LEN;
        let sum = sp.wrapping_mul(HINT_SPREAD).wrapping_add(other.wrapping_mul(OTHER_SPREAD));
        let at = (sum >> HINT_SHIFT & self.mask()) as usize / HINT_LEN;
        let first = at & !(LINE - 1);
        self.0.get(first..(first + LINE).min(self.0.len())).unwrap_or_default()
    }
}
