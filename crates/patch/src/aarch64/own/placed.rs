//! Our patches in our own process, by address.
//!
//! In: words as they are placed, softened and forgotten. Out: which words are ours. Invariants: what is soft is
//! placed. Does not: read or write code.

use std::collections::{BTreeMap, BTreeSet};

/// All patches: the file's word, and ours.
#[derive(Debug, Default)]
pub(super) struct Placed {
    words: BTreeMap<u64, (u32, u32)>,
    /// Addresses of those that are planned anew (S1).
    soft: BTreeSet<u64>,
}

impl Placed {
    /// The patch at an address.
    pub(super) fn at(&self, at: u64) -> Option<(u32, u32)> {
        self.words.get(&at).copied()
    }
    /// Whether the patch at an address is planned anew.
    pub(super) fn is_soft(&self, at: u64) -> bool {
        self.soft.contains(&at)
    }
    /// Whether a patch may be placed at an address.
    pub(super) fn is_free(&self, at: u64) -> bool {
        !self.words.contains_key(&at) || self.is_soft(at)
    }
    /// The word that a present word stands for, as if soft patches were not there.
    pub(super) fn original(&self, at: u64, present: u32) -> u32 {
        let soft = self.at(at).filter(|placed| placed.1 == present && self.is_soft(at));
        soft.map_or(present, |placed| placed.0)
    }
    /// Notes a patch, which is not soft any more. Returns whether its word has to be written.
    pub(super) fn place(&mut self, at: u64, words: (u32, u32)) -> bool {
        let stands = self.words.insert(at, words).filter(|_| self.soft.remove(&at));
        stands != Some(words)
    }
    /// Marks patches as planned anew.
    pub(super) fn soften(&mut self, addrs: impl Iterator<Item = u64>) {
        self.soft.extend(addrs.filter(|at| self.words.contains_key(at)));
    }
    /// Addresses of soft patches, none of which is soft any more.
    pub(super) fn take_soft(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.soft)
    }
    /// Forgets a patch, and returns it.
    pub(super) fn forget(&mut self, at: u64) -> Option<(u32, u32)> {
        self.soft.remove(&at);
        self.words.remove(&at)
    }
}
