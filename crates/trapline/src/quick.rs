//! Hash tables that are looked into for every record.
//!
//! In: keys of a few numbers. Out: [`Quick`] tables. The hash is two multiplications' worth of mixing under a key of each table's own, so
//! that who writes the records cannot choose numbers that collide without having seen it. Does not: resist who has.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A table with such a hash.
pub(crate) type Quick<K, V> = HashMap<K, V, Keyed>;

/// A table's own key.
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

/// What was mixed so far.
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
        // The highest bits choose within a group, the lowest the group.
        self.0 ^ self.0.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::{Keyed, Quick};
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    #[test]
    fn neighbours_are_spread() {
        let keyed = Keyed::default();
        for step in [1_u64, 8, 64, 4096, 1 << 32] {
            let low: HashSet<u64> = (0..4096).map(|n| keyed.hash_one((7_u32, n * step)) & 0xfff).collect();
            let high: HashSet<u64> = (0..4096).map(|n| keyed.hash_one((7_u32, n * step)) >> 52).collect();
            // About 63 in a hundred, as of numbers drawn at random.
            assert!(low.len() > 2300 && high.len() > 2300, "{step}: {} {}", low.len(), high.len());
        }
        let mut table = Quick::default();
        (0..1000_u32).for_each(|n| assert_eq!(table.insert((n, u64::from(n) << 4), n), None));
        assert!((0..1000).all(|n| table.get(&(n, u64::from(n) << 4)) == Some(&n)));
    }
}
