//! Shared memory as a slice of atomic words: the only way to access it from the tracer's side (REC-2).
//!
//! A broken target may write anything into shared memory at any time, so every access checks bounds and every
//! value read is treated as input. Offsets are in bytes and must be multiples of 8.

use crate::sync::{AtomicU64, Ordering, fence};

/// A window on shared memory.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    words: &'a [AtomicU64],
}

impl<'a> View<'a> {
    /// A view of these words.
    #[must_use]
    pub const fn new(words: &'a [AtomicU64]) -> Self {
        Self { words }
    }
    /// Length of the view in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.words.len() as u64 * 8
    }
    /// Whether the view is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
    fn word(&self, at: u64) -> Option<&'a AtomicU64> {
        if !at.is_multiple_of(8) {
            return None;
        }
        self.words.get(usize::try_from(at / 8).ok()?)
    }
    /// The word at byte offset `at`; 0 when it is outside the view.
    #[must_use]
    pub fn get(&self, at: u64) -> u64 {
        self.word(at).map_or(0, |w| w.load(Ordering::Acquire))
    }
    /// Copies bytes out, word by word; `at` must be a multiple of 8. Bytes outside the view leave `into` as
    /// it was.
    pub fn read_bytes(&self, at: u64, into: &mut [u8]) {
        let begin = usize::try_from(at / 8).ok().filter(|_| at.is_multiple_of(8));
        let words = begin.and_then(|begin| self.words.get(begin..)).unwrap_or_default();
        for (chunk, word) in into.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.load(Ordering::Acquire).to_le_bytes());
        }
    }
    /// Stores a word; outside the view it does nothing and returns false.
    pub fn set(&self, at: u64, value: u64) -> bool {
        self.word(at).map(|w| w.store(value, Ordering::Release)).is_some()
    }
    /// Stores a word and returns what it was, by one access; 0 outside the view.
    pub fn swap(&self, at: u64, value: u64) -> u64 {
        self.word(at).map_or(0, |w| w.swap(value, Ordering::AcqRel))
    }
    /// Changes a word from 0 to this value by one access. Returns whether it did; outside the view it does not.
    pub fn claim(&self, at: u64, value: u64) -> bool {
        let claimed =
            |w: &AtomicU64| w.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.word(at).is_some_and(claimed)
    }
    /// Adds to a word, for counters that the tracer itself keeps; outside the view it returns false.
    pub fn add(&self, at: u64, by: u64) -> bool {
        self.word(at).map(|w| w.fetch_add(by, Ordering::AcqRel)).is_some()
    }
    /// Clears bits of a word by one access.
    pub fn clear_bits(&self, at: u64, bits: u64) {
        if let Some(word) = self.word(at) {
            word.fetch_and(!bits, Ordering::AcqRel);
        }
    }
    /// Makes a word 0 and returns what it was; 0 outside the view. All stores before it come before the look, also for
    /// another process that stores to this word first, and then looks at theirs behind a fence of its own.
    #[must_use]
    pub fn take_in_order(&self, at: u64) -> u64 {
        fence(Ordering::SeqCst);
        let word = self.word(at);
        // Most words are 0, and then they are not written.
        let is_set = |w: &&AtomicU64| w.load(Ordering::Acquire) != 0;
        word.filter(is_set).map_or(0, |w| w.swap(0, Ordering::AcqRel))
    }
    /// Copies bytes in, word by word; `at` must be a multiple of 8, and the last word is padded with zeros.
    pub fn write_bytes(&self, at: u64, bytes: &[u8]) -> bool {
        bytes.chunks(8).zip((at..).step_by(8)).all(|(chunk, at)| {
            let mut word = [0u8; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.set(at, u64::from_le_bytes(word))
        })
    }
}
