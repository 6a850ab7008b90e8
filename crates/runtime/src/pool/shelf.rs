//! The few objects that a CPU keeps for itself, last in first out.
//!
//! In: objects. Out: objects. Invariant: changed only by sequences on its CPU, each with one store that commits, or by the closer
//! when none can come any more. What a sequence does stands here as plain steps, for models and tests, and in
//! `x86_64` as the instructions that run. The protocol stands in [`pool`](super).

use super::sync::{Acquire, AtomicU32, Relaxed, Release};

/// The most that a shelf can hold: with its two counts it is one cache line.
pub const MOST: u32 = 14;

/// One cache line, written by one CPU.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Shelf {
    /// How many are on it.
    top: AtomicU32,
    /// How many it takes; 0: closed.
    depth: AtomicU32,
    slots: [AtomicU32; MOST as usize],
}

impl Shelf {
    /// Empty, open for so many.
    pub fn open(&self, depth: u32) {
        self.top.store(0, Relaxed);
        self.reopen(depth);
    }
    /// C1.
    pub fn shut(&self) {
        self.depth.store(0, Release);
    }
    /// C1, undone.
    pub fn reopen(&self, depth: u32) {
        self.depth.store(depth.min(MOST), Release);
    }
    /// C3: how many were on it.
    #[must_use]
    pub fn empty(&self) -> u32 {
        self.top.swap(0, Acquire)
    }
    /// How many are on it, roughly.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.top.load(Relaxed)
    }
    /// Whether none is, roughly.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// G1 and G2, by whoever is alone on this CPU.
    #[must_use]
    pub fn take(&self) -> Option<u32> {
        if self.depth.load(Relaxed) == 0 {
            return None;
        }
        let top = self.top.load(Relaxed).checked_sub(1)?;
        let object = self.slots.get(top as usize)?.load(Relaxed);
        self.top.store(top, Relaxed);
        Some(object)
    }
    /// P1 and P2, by whoever is alone on this CPU: whether it was kept.
    #[must_use]
    pub fn put(&self, object: u32) -> bool {
        let top = self.top.load(Relaxed);
        let Some(slot) = self.slots.get(top as usize).filter(|_| top < self.depth.load(Relaxed)) else {
            return false;
        };
        slot.store(object, Relaxed);
        self.top.store(top + 1, Relaxed);
        true
    }
}
