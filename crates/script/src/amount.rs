//! What the target's maps hold for a key.
//!
//! In: nothing; whoever reads the target makes it. Out: plain data. Does not: know maps.

use std::collections::BTreeMap;

/// What hits have added for a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amount {
    /// Hits.
    pub hits: u64,
    /// The sum of their values; only its low 64 bits matter.
    pub sum: i128,
    /// The least of them, and the greatest.
    pub extremes: Option<(i128, i128)>,
    /// Hits by power of two or step.
    pub buckets: BTreeMap<u64, u64>,
}

impl Amount {
    /// Adds what another table holds for the same key.
    pub(crate) fn add(&mut self, more: &Self) {
        self.hits = self.hits.wrapping_add(more.hits);
        self.sum = self.sum.wrapping_add(more.sum);
        self.extremes = match (self.extremes, more.extremes) {
            (Some((a, b)), Some((c, d))) => Some((a.min(c), b.max(d))),
            (one, other) => one.or(other),
        };
        for (bucket, hits) in &more.buckets {
            let sum = self.buckets.entry(*bucket).or_default();
            *sum = sum.wrapping_add(*hits);
        }
    }
    /// What it is more than before. Extremes are those of all hits.
    pub(crate) fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let bucket = |(bucket, hits): (&u64, &u64)| {
            (*bucket, hits.saturating_sub(before.buckets.get(bucket).copied().unwrap_or(0)))
        };
        Self {
            hits: self.hits.saturating_sub(before.hits),
            sum: self.sum.wrapping_sub(before.sum),
            extremes: self.extremes,
            buckets: self.buckets.iter().map(bucket).filter(|(_, hits)| *hits > 0).collect(),
        }
    }
}
