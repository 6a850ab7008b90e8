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
    /// Updates that are in no table, by map.
    lost: BTreeMap<usize, Lost>,
}

/// Updates that are in no table.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lost {
    /// They found no room.
    pub full: u64,
    /// They met another one of their key, which did not end.
    pub met: u64,
}

impl Totals {
    /// Adds to the row of a key.
    pub(crate) fn add_value(&mut self, map: usize, key: Value, amount: &Amount) {
        self.rows.entry((map, key)).or_default().add(amount);
    }
    /// Adds updates that are not in a map.
    pub fn lose_in(&mut self, map: usize, more: Lost) {
        let lost = self.lost.entry(map).or_default();
        *lost = Lost { full: lost.full + more.full, met: lost.met + more.met };
    }
    /// The rows that have more hits than before, with what is more.
    pub(super) fn since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (&'a Row, Amount)> {
        let more = |(row, amount): (&'a Row, &Amount)| (row, amount.since(before.rows.get(row)));
        self.rows.iter().map(more).filter(|(_, more)| more.hits > 0)
    }
    /// How many more updates than before are not there, by map.
    pub(super) fn lost_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = (usize, Lost)> + 'a {
        let before = |map| before.lost.get(&map).copied().unwrap_or_default();
        let since = move |map, now: Lost| Lost {
            full: now.full.saturating_sub(before(map).full),
            met: now.met.saturating_sub(before(map).met),
        };
        self.lost.iter().map(move |(map, now)| (*map, since(*map, *now)))
    }
}
