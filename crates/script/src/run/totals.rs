//! What the target's tables hold, as rows of maps.
//!
//! In: tables, place by place. Out: rows by map and key, and how much they are more than before. Invariant: what is added
//! for one key is added up, wherever it was counted. Does not: read tables.

use std::collections::BTreeMap;

use crate::amount::Amount;
use crate::value::Value;

/// A map and a key.
pub(super) type Row = (usize, Value);

/// What all tables hold now.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    rows: BTreeMap<Row, Amount>,
    /// Hits that found no room in a table, by map.
    lost: BTreeMap<usize, u64>,
}

impl Totals {
    /// Adds to the row of a key.
    pub(crate) fn add_value(&mut self, map: usize, key: Value, amount: &Amount) {
        self.rows.entry((map, key)).or_default().add(amount);
    }
    /// Adds hits that found no room in a map.
    pub fn lose_in(&mut self, map: usize, hits: u64) {
        if hits > 0 {
            *self.lost.entry(map).or_default() += hits;
        }
    }
    /// The rows that have more hits than before, with what is more.
    pub(super) fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a Row, Amount)> {
        let more = |(row, amount): (&'a Row, &Amount)| (row, amount.since(before.rows.get(row)));
        self.rows.iter().map(more).filter(|(_, more)| more.hits > 0)
    }
    /// How many more hits than before found no room, by map.
    pub(super) fn lost_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (usize, u64)> + 'a {
        let before = |map| before.lost.get(&map).copied().unwrap_or(0);
        self.lost.iter().map(move |(map, lost)| (*map, lost.saturating_sub(before(*map))))
    }
}
