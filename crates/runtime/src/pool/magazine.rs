//! A per-CPU magazine: the few objects that a CPU keeps for itself, last in first out, all in one word.
//!
//! In: objects. Out: objects. Invariant: changed only by sequences on its CPU, each with one store that
//! commits, or by the closer when no sequence can come any more. Here a sequence is written as plain steps,
//! for models and tests; the processors' files contain the instructions that run. [`pool`](super) describes
//! the protocol.
//!
//! ```text
//!   word  = sum of (object + 1) << 16 n        n = 0 for the last one that was put; zeros above the first one
//!   limit = 1 << 16 (depth - 1)                room if word < limit; 0 for depth 0, and if it is closed
//!   take  : object = word mod 2^16 - 1, word = word >> 16
//!   put   : word = (word << 16) + object + 1
//! ```
//!
//! One word is better than fields and a count: loads behind a store would have to wait for it, if its address
//! depended on the count.

use super::sync::{Acquire, AtomicU64, Relaxed, Release};

/// Maximum number of objects in a magazine.
pub const MOST: u32 = 4;
/// Maximum number of objects in a pool.
pub const MOST_OBJECTS: u32 = u16::MAX as u32;
/// Number of bits for an object.
pub(crate) const BITS: u32 = 16;

/// A magazine: one cache line, written by one CPU.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Magazine {
    pub(crate) word: AtomicU64,
    /// There is room if the word is less; 0: closed.
    pub(crate) limit: AtomicU64,
}

/// Words with fewer objects than the depth are less than this. For depth 0 this is 0, and no word is less.
const fn limit(depth: u32) -> u64 {
    match depth {
        0 => 0,
        depth => 1 << (BITS * (depth - 1)),
    }
}

const fn count(word: u64) -> u32 {
    (u64::BITS - word.leading_zeros()).div_ceil(BITS)
}

impl Magazine {
    /// Empties the magazine and opens it for so many objects.
    pub fn open(&self, depth: u32) {
        self.word.store(0, Relaxed);
        self.reopen(depth);
    }
    /// C1.
    pub fn shut(&self) {
        self.limit.store(0, Release);
    }
    /// Undoes C1.
    pub fn reopen(&self, depth: u32) {
        self.limit.store(limit(if depth < MOST { depth } else { MOST }), Release);
    }
    /// C3: empties it, and returns how many objects were in it.
    #[must_use]
    pub fn empty(&self) -> u32 {
        count(self.word.swap(0, Acquire))
    }
    /// Number of objects in it; approximate while sequences run.
    #[must_use]
    pub fn len(&self) -> u32 {
        count(self.word.load(Relaxed))
    }
    /// Whether it is empty; approximate while sequences run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// G1 and G2. The caller is alone on this CPU.
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
    /// P1 and P2. The caller is alone on this CPU. Whether the magazine kept the object.
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
