//! The free bitmap of one CPU: one bit for each object of the pool, so there is room for all.
//!
//! In: words, an object's number. Out: whether it was kept; which was taken. Invariant: each step is one
//! atomic instruction on one word.
//!
//! ```text
//!   object = PER_WORD·w + b             bit b of word w; PER_WORD = 63; bit 63: closed
//!   put    word = word + (1 << b)       the bit was 0: no carry
//!   take   b = ctz(word), word = word & (word - 1)
//!   close  word = 1 << 63
//! ```
//!
//! Does not: know which CPU it belongs to. [`pool`](super) describes the protocol.

use super::sync::{AcqRel, Acquire, AtomicU64, Relaxed, Release};

/// Objects in one word. The bit above them says that the word is closed.
pub const PER_WORD: u32 = 63;
const CLOSED: u64 = 1 << PER_WORD;

/// Number of words for so many objects.
#[must_use]
pub const fn words(objects: u32) -> u32 {
    objects.div_ceil(PER_WORD)
}

/// P3: whether the bitmap kept the object. If not, it is closed, and the caller still holds the object.
///
/// It is an addition, since the bit is known to be 0: of the instructions that return the old value, only
/// `xadd` needs no loop.
#[inline]
#[must_use]
pub fn put(set: &[AtomicU64], object: u32) -> bool {
    let Some(word) = set.get((object / PER_WORD) as usize) else {
        debug_assert!(false, "object {object} is of another pool");
        return true;
    };
    word.fetch_add(1 << (object % PER_WORD), Release) & CLOSED == 0
}

/// G3: takes the lowest free object.
#[inline]
#[must_use]
pub fn take(set: &[AtomicU64]) -> Option<u32> {
    let mut first = 0;
    for word in set {
        let mut seen = word.load(Relaxed);
        while seen != 0 {
            if seen & CLOSED != 0 {
                return None;
            }
            match word.compare_exchange_weak(seen, seen & (seen - 1), Acquire, Relaxed) {
                Ok(_) => return Some(first + seen.trailing_zeros()),
                Err(now) => seen = now,
            }
        }
        first += PER_WORD;
    }
    None
}

/// C4: closes the bitmap, and returns how many objects were free in it.
#[must_use]
pub fn close(set: &[AtomicU64]) -> u32 {
    set.iter().map(|word| (word.swap(CLOSED, AcqRel) & !CLOSED).count_ones()).sum()
}

/// Number of free objects; approximate while other threads run.
#[must_use]
pub fn free(set: &[AtomicU64]) -> u32 {
    let open = |word: u64| if word & CLOSED == 0 { word.count_ones() } else { 0 };
    set.iter().map(|word| open(word.load(Relaxed))).sum()
}
