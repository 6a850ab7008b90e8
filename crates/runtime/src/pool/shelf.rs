//! The few objects that a CPU keeps for itself, last in first out, all in one word.
//!
//! In: objects. Out: objects. Invariant: changed only by sequences on its CPU, each with one store that commits, or by the closer
//! when none can come any more. What a sequence does stands here as plain steps, for models and tests, and in
//! the twins as the instructions that run. The protocol stands in [`pool`](super).
//!
//! An object is its number + 1, in 16 bits; the last one that came lies lowest, and zeros are above the first. One word rather
//! than slots and a count: a store whose address hangs on the count would hold up the loads that follow it.

use super::sync::{Acquire, AtomicU64, Relaxed, Release};

/// The most that a shelf can hold.
pub const MOST: u32 = 4;
/// The most objects that there can be.
pub const MOST_OBJECTS: u32 = u16::MAX as u32;
/// Bits of an object.
pub(crate) const BITS: u32 = 16;

/// One cache line, written by one CPU.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Shelf {
    pub(crate) word: AtomicU64,
    /// There is room if the word is less; 0: closed.
    pub(crate) limit: AtomicU64,
}

/// Words with fewer objects than the depth are less than this; none is less if it is 0.
const fn limit(depth: u32) -> u64 {
    match depth {
        0 => 0,
        depth => 1 << (BITS * (depth - 1)),
    }
}

const fn count(word: u64) -> u32 {
    (u64::BITS - word.leading_zeros()).div_ceil(BITS)
}

impl Shelf {
    /// Empty, open for so many.
    pub fn open(&self, depth: u32) {
        self.word.store(0, Relaxed);
        self.reopen(depth);
    }
    /// C1.
    pub fn shut(&self) {
        self.limit.store(0, Release);
    }
    /// C1, undone.
    pub fn reopen(&self, depth: u32) {
        self.limit.store(limit(if depth < MOST { depth } else { MOST }), Release);
    }
    /// C3: how many were on it.
    #[must_use]
    pub fn empty(&self) -> u32 {
        count(self.word.swap(0, Acquire))
    }
    /// How many are on it, roughly.
    #[must_use]
    pub fn len(&self) -> u32 {
        count(self.word.load(Relaxed))
    }
    /// Whether none is, roughly.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// G1 and G2, by whoever is alone on this CPU.
    #[must_use]
    pub fn take(&self) -> Option<u32> {
        if self.limit.load(Relaxed) == 0 {
            return None;
        }
        let word = self.word.load(Relaxed);
        let object = u32::from(word as u16).checked_sub(1)?;
        self.word.store(word >> BITS, Relaxed);
        Some(object)
    }
    /// P1 and P2, by whoever is alone on this CPU: whether it was kept.
    #[must_use]
    pub fn put(&self, object: u32) -> bool {
        let word = self.word.load(Relaxed);
        let room = word < self.limit.load(Relaxed);
        if room {
            self.word.store((word << BITS) + u64::from(object) + 1, Relaxed);
        }
        room
    }
}
