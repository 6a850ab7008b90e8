//! Hash maps that are looked into for every record.
//!
//! In: keys of a few numbers. Out: [`Quick`] maps. The hash costs about two multiplications. Each map mixes
//! in a key of its own, so a target that writes the records cannot choose numbers that collide without having
//! seen the key. Does not: resist a target that has seen it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// A hash map with that hash.
pub(crate) type Quick<K, V> = HashMap<K, V, Keyed>;

/// A hash map; its values are taken out by key. Values under one key come out in the order in which they were
/// put in: a slow clock (arm64's) gives several calls one time.
#[derive(Debug)]
pub(crate) struct InTurn<K, V> {
    first: Quick<K, V>,
    /// Further values under keys that were taken, in order.
    later: VecDeque<(K, V)>,
}

impl<K, V> Default for InTurn<K, V> {
    fn default() -> Self {
        Self { first: Quick::default(), later: VecDeque::new() }
    }
}

impl<K: Eq + Hash + Copy, V> InTurn<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) {
        match self.first.entry(key) {
            Entry::Vacant(vacant) => drop(vacant.insert(value)),
            Entry::Occupied(_) => self.later.push_back((key, value)),
        }
    }
    /// The value that `remove` takes next.
    pub(crate) fn first(&self, key: &K) -> Option<&V> {
        self.first.get(key)
    }
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let value = self.first.remove(key)?;
        let next = self.later.iter().position(|later| later.0 == *key);
        if let Some((key, value)) = next.and_then(|at| self.later.remove(at)) {
            self.first.insert(key, value);
        }
        Some(value)
    }
}

/// Key of one map.
#[derive(Clone, Debug)]
pub(crate) struct Keyed(u64);

impl Default for Keyed {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Keyed {
    type Hasher = Mixed;
    fn build_hasher(&self) -> Mixed {
        Mixed(self.0)
    }
}

/// State of the hash.
#[derive(Debug)]
pub(crate) struct Mixed(u64);

impl Mixed {
    const fn mix(&mut self, word: u64) {
        let product = (self.0 ^ word) as u128 * 0x9E37_79B9_7F4A_7C15_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }
    fn write_u32(&mut self, word: u32) {
        self.mix(word.into());
    }
    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }
    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
    fn finish(&self) -> u64 {
        // The highest bits choose within a group, the lowest bits choose the group.
        self.0 ^ self.0.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::{InTurn, Keyed, Quick};
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    #[test]
    fn neighbours_are_spread() {
        let keyed = Keyed::default();
        for step in [1_u64, 8, 64, 4096, 1 << 32] {
            let low: HashSet<u64> = (0..4096).map(|n| keyed.hash_one((7_u32, n * step)) & 0xfff).collect();
            let high: HashSet<u64> = (0..4096).map(|n| keyed.hash_one((7_u32, n * step)) >> 52).collect();
            // About 63 in a hundred, as for numbers drawn at random.
            assert!(low.len() > 2300 && high.len() > 2300, "{step}: {} {}", low.len(), high.len());
        }
        let mut table = Quick::default();
        (0..1000_u32).for_each(|n| assert_eq!(table.insert((n, u64::from(n) << 4), n), None));
        assert!((0..1000).all(|n| table.get(&(n, u64::from(n) << 4)) == Some(&n)));
    }
    #[test]
    fn what_has_one_key_comes_in_turn() {
        let mut table = InTurn::default();
        let all = [(1, 'a'), (2, 'b'), (1, 'c'), (1, 'd'), (2, 'e')];
        all.into_iter().for_each(|(key, value)| table.insert(key, value));
        assert_eq!(
            [1, 2, 1, 2, 2, 1, 1].map(|key| table.remove(&key)),
            [Some('a'), Some('b'), Some('c'), Some('e'), None, Some('d'), None]
        );
        assert!(table.first.is_empty() && table.later.is_empty());
    }
}
