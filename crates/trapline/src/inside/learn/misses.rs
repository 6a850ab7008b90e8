//! When a miss has the maps looked at: somebody asked what lies at an address, and no file's code was known there.
//!
//! In: misses, from any thread; looks that are over, and whether they found something. Out: which misses ask for a look. Invariant: MIS-1 after looks
//! that found nothing, the next one waits for twice as many misses, 65,536 at most; so a program that asks for addresses of code that no file holds (a
//! compiler's at run time) costs a call of the kernel's now and then, and no look each. Does not: look, or ring (`thread`).
//!
//! # Interleavings
//!
//! - *a miss before the look read `seen`*: its address was asked for before the maps are read, so the look is of what it asked for.
//! - *behind it, and before [`looked`](Misses::looked)*: `next` is the old one, so it asks again, and another look follows. None is forgotten.
//! - *two misses at once*: each has its own number, and both may ask: one look or two.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The most misses that a look waits for.
const MOST: u64 = 1 << 16;

/// Misses so far, and the number of the next that asks.
#[derive(Debug)]
pub(super) struct Misses {
    seen: AtomicU64,
    next: AtomicU64,
    /// Between the last look and `next`; its owner is the thread that looks.
    gap: AtomicU64,
}

impl Misses {
    pub(super) const fn new() -> Self {
        Self { seen: AtomicU64::new(0), next: AtomicU64::new(1), gap: AtomicU64::new(1) }
    }
    /// Another one. Whether it asks for a look.
    pub(super) fn miss(&self) -> bool {
        self.seen.fetch_add(1, Release) + 1 >= self.next.load(Acquire)
    }
    /// So far.
    pub(super) fn seen(&self) -> u64 {
        self.seen.load(Acquire)
    }
    /// Whether one of the first `seen` asks.
    pub(super) fn asks(&self, seen: u64) -> bool {
        seen >= self.next.load(Relaxed)
    }
    /// A look is over that began when there were `seen`. Called by one thread.
    pub(super) fn looked(&self, seen: u64, found: bool) {
        let asked = self.asks(seen);
        let gap = match (found, asked) {
            (true, _) => 1,
            (false, true) => (self.gap.load(Relaxed) * 2).min(MOST),
            // It was for others' sake.
            (false, false) => return,
        };
        self.gap.store(gap, Relaxed);
        self.next.store(seen + gap, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Misses until one asks; at most so many.
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
