//! When a miss leads to a look: the program asked what is mapped at an address, and no file's code was known
//! there.
//!
//! In: misses, from any thread; looks that are over, and whether they found something. Out: which misses ask
//! for a look. Invariant: MIS-1 after a look that found nothing, the next one waits for twice as many misses,
//! at most 65,536. So a program that asks for addresses of code that no file holds (from a compiler at run
//! time) causes a system call now and then, and not a look each time. Does not: look, or ring (`thread`).
//!
//! # Interleavings
//!
//! - *A miss before the look reads `seen`*: its address was asked for before the maps are read, so the look
//!   covers it.
//! - *A miss after that, and before [`looked`](Misses::looked)*: `next` is still the old value, so the miss
//!   asks again, and another look follows. None is forgotten.
//! - *Two misses at once*: each has its own number, and both may ask: one look or two.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Most misses for which a look waits.
const MOST: u64 = 1 << 16;

/// Number of misses so far, and the number of the next one that asks.
#[derive(Debug)]
pub(super) struct Misses {
    seen: AtomicU64,
    next: AtomicU64,
    /// Distance between the last look and `next`; only the thread that looks writes it.
    gap: AtomicU64,
}

impl Misses {
    pub(super) const fn new() -> Self {
        Self { seen: AtomicU64::new(0), next: AtomicU64::new(1), gap: AtomicU64::new(1) }
    }
    /// Counts another miss. Returns whether it asks for a look.
    pub(super) fn miss(&self) -> bool {
        self.seen.fetch_add(1, Release) + 1 >= self.next.load(Acquire)
    }
    /// Misses so far.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Acquire)
    }
    /// Whether one of the first `seen` misses asks.
    pub(super) fn asks(&self, seen: u64) -> bool {
        seen >= self.next.load(Relaxed)
    }
    /// Called by the thread that looks, after a look that began when there were `seen` misses.
    pub(super) fn looked(&self, seen: u64, found: bool) {
        let asked = self.asks(seen);
        let gap = match (found, asked) {
            (true, _) => 1,
            (false, true) => (self.gap.load(Relaxed) * 2).min(MOST),
            // The look was not made for a miss.
            (false, false) => return,
        };
        self.gap.store(gap, Relaxed);
        self.next.store(seen + gap, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of misses until one asks; at most so many are made.
    fn until_one_asks(misses: &Misses, at_most: u64) -> u64 {
        (1..=at_most).find(|_| misses.miss()).expect("one asks")
    }

    #[test]
    fn what_finds_nothing_is_asked_for_half_as_often_and_what_finds_something_at_once() {
        let misses = Misses::new();
        let mut gaps = Vec::new();
        for _ in 0..18 {
            gaps.push(until_one_asks(&misses, MOST + 1));
            misses.looked(misses.seen(), false);
        }
        let doubled: Vec<u64> = (0..18).map(|n| 1 << u32::min(n, 16)).collect();
        assert_eq!(gaps, doubled);
        misses.looked(misses.seen(), true);
        assert_eq!(until_one_asks(&misses, MOST), 1);
    }

    #[test]
    fn a_look_for_others_sake_that_finds_nothing_changes_nothing() {
        let misses = Misses::new();
        until_one_asks(&misses, 1);
        misses.looked(misses.seen(), false);
        misses.looked(misses.seen(), false);
        assert_eq!(until_one_asks(&misses, 4), 2);
    }

    #[test]
    fn one_that_comes_during_a_look_asks_for_another() {
        let misses = Misses::new();
        assert!(misses.miss());
        let seen = misses.seen();
        assert!(misses.miss() && misses.asks(misses.seen()));
        misses.looked(seen, true);
        assert!(misses.asks(misses.seen()));
    }
}
