//! What the target's tables hold, as rows of maps.
//!
//! In: tables, place by place. Out: rows by map and key, and how much they are more than before. Invariant: what is added
//! for one key is added up, wherever it was counted. Does not: read tables.

use std::collections::BTreeMap;

use super::world::Hit;
use crate::counted::{Amount, Part, Update};
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
    /// Adds what a table holds: of one group, or of all hits if the update is not grouped. `at`: where and in which process
    /// it was counted.
    pub fn add(&mut self, update: &Update, at: &Hit, group: u64, amount: &Amount) {
        if amount.hits == 0 {
            return;
        }
        let part = |part: &Part| match part {
            Part::Func => Value::of_text(at.func.as_bytes()),
            Part::Probe => Value::of_text(at.probe.as_bytes()),
            Part::Sort => Value::of_text(at.sort.as_bytes()),
            Part::Pid => Value::Int(i64::from(at.pid)),
            Part::Group => Value::Int(group as i64),
            Part::Constant(value) => value.clone(),
        };
        let key = match &update.key[..] {
            [] => Value::Nothing,
            [one] if !update.is_tuple => part(one),
            parts => Value::Parts(parts.iter().map(part).collect()),
        };
        self.add_value(update.map, key, amount);
    }
    /// Adds to the row of a key.
    pub(crate) fn add_value(&mut self, map: usize, key: Value, amount: &Amount) {
        self.rows.entry((map, key)).or_default().add(amount);
    }
    /// Adds hits that found no room in a table.
    pub fn lose(&mut self, update: &Update, hits: u64) {
        self.lose_in(update.map, hits);
    }
    /// The same for a map.
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
