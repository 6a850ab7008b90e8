//! Maps, while a script runs.
//!
//! In: keys and values. Out: values, and whether there was room. Invariant: a map never has more keys than it has room
//! for: a new one is refused and counted, or takes the place of the one that was used least recently.
//! Does not: know types.

use std::collections::HashMap;

use trapline_order::Order as _;

use crate::cell::Cell;
use crate::program::MapInfo;
use crate::table::Rows;
use crate::value::Value;

/// A map.
#[derive(Debug)]
pub(crate) struct Map {
    entries: HashMap<Value, (u64, Cell)>,
    /// Counts insertions, and uses where that matters.
    turn: u64,
    room: usize,
    evicts: bool,
    /// Updates that found no room.
    pub(crate) lost: u64,
    /// Updates that met another one of their key, which did not end.
    pub(crate) met: u64,
}

impl Map {
    pub(super) fn new(info: &MapInfo) -> Self {
        Self {
            entries: HashMap::new(),
            turn: 0,
            room: info.room.max(1),
            evicts: info.evicts,
            lost: 0,
            met: 0,
        }
    }
    pub(super) fn get(&mut self, key: &Value) -> Option<&Cell> {
        self.turn += 1;
        let (turn, evicts) = (self.turn, self.evicts);
        let (used, cell) = self.entries.get_mut(key)?;
        if evicts {
            *used = turn;
        }
        Some(cell)
    }
    /// The cell of a key, made of `empty` if it is new; `None` if there is no room for it.
    pub(crate) fn entry(&mut self, key: Value, empty: impl FnOnce() -> Cell) -> Option<&mut Cell> {
        self.turn += 1;
        if self.entries.len() >= self.room && !self.entries.contains_key(&key) && !self.make_room() {
            self.lost += 1;
            return None;
        }
        let (turn, evicts) = (self.turn, self.evicts);
        let (used, cell) = self.entries.entry(key).or_insert_with(|| (turn, empty()));
        if evicts {
            *used = turn;
        }
        Some(cell)
    }
    /// Removes what was used least recently, if the map does that.
    fn make_room(&mut self) -> bool {
        if self.evicts
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, (used, _))| *used)
        {
            let key = oldest.0.clone();
            self.entries.remove(&key);
        }
        self.evicts
    }
    /// All entries are these; there is room for them elsewhere. Of one key the first counts.
    pub(crate) fn replace(&mut self, entries: impl Iterator<Item = (Value, Cell)>) {
        self.entries.clear();
        for (key, cell) in entries {
            self.turn += 1;
            self.entries.entry(key).or_insert((self.turn, cell));
        }
    }
    pub(super) fn remove(&mut self, key: &Value) -> bool {
        self.entries.remove(key).is_some()
    }
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
    /// All cells, to be changed.
    pub(super) fn cells(&mut self) -> impl Iterator<Item = &mut Cell> {
        self.entries.values_mut().map(|(_, cell)| cell)
    }
    /// All keys with their cells.
    pub(super) fn rows(&self) -> Rows<'_> {
        self.entries.iter().map(|(key, (_, cell))| (key, cell)).collect()
    }
    /// All keys, in the order in which they came.
    pub(super) fn keys(&self) -> Vec<Value> {
        let mut keys: Vec<_> = self.entries.iter().map(|(key, (turn, _))| (*turn, key)).collect();
        keys.order();
        keys.into_iter().map(|(_, key)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Map;
    use crate::cell::Cell;
    use crate::program::{MapInfo, SumArgs};
    use crate::types::Type;
    use crate::value::Value;

    fn map(evicts: bool) -> Map {
        let name = "@".to_owned();
        let (key, value) = (Some(Type::int(8)), Type::int(8));
        Map::new(&MapInfo { name, key, value, room: 2, evicts, sums: SumArgs::None })
    }

    fn put(map: &mut Map, key: i64) -> bool {
        map.entry(Value::Int(key), || Cell::Plain(Value::Int(key))).is_some()
    }

    #[test]
    fn a_full_map_counts_what_finds_no_room() {
        let mut map = map(false);
        assert_eq!(
            [put(&mut map, 1), put(&mut map, 2), put(&mut map, 3), put(&mut map, 1)],
            [true, true, false, true]
        );
        assert_eq!((map.len(), map.lost), (2, 1));
        assert!(map.remove(&Value::Int(1)) && !map.remove(&Value::Int(1)));
        assert!(put(&mut map, 3));
    }

    #[test]
    fn a_map_that_evicts_keeps_what_was_used_last() {
        let mut map = map(true);
        assert!(
            put(&mut map, 1) && put(&mut map, 2) && map.get(&Value::Int(1)).is_some() && put(&mut map, 3)
        );
        assert_eq!((map.keys(), map.lost), (vec![Value::Int(1), Value::Int(3)], 0));
    }
}
