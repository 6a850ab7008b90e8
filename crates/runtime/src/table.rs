//! A hash table of 64-bit keys and values, for one writer and any number of readers. Readers neither lock nor
//! store.
//!
//! In: keys and values, neither 0. Out: the value that a key had at some moment between call and return.
//! Invariants: TAB-1 a key's place never changes within a table, so a change of one key does not disturb a
//! reader of another. TAB-2 a reader that sees a value also sees what was written before the value was set.
//! Does not: own what values stand for.
//!
//! # Steps
//!
//! Open addressing by buckets of four places; a bucket is one cache line. A key is in the first bucket, from
//! its own on, that had a free place. Tables are at most two thirds full: small tables stay in small caches.
//! A place's key is set once. A key that is removed keeps its place, with value 0. Such places are reclaimed
//! when the table is replaced by a larger one.
//!
//! | writer | reader, inside an epoch |
//! |---|---|
//! | S1 store the value (release) | G1 load the table (acquire) |
//! | S2 at a new place: store the key (release) | G2 load keys from the key's first bucket on (acquire), |
//! | | until it, or a bucket with a 0 |
//! | X1 when full: fill a new table with what has a value; | G3 load the value (acquire); 0 is none |
//! | X2 store the pointer (release); X3 the old one is unlinked | |
//!
//! - *G2 reads the place between S1 and S2*: key 0, so none, as before the insertion. (Between S2 and S1, if
//!   they were the other way round: value 0, so none as well. One store takes effect: S1 at an old place, S2
//!   at a new one.)
//! - *G2 after S2*: G3 sees S1's value or a later one, and what was written before S1 (release, acquire). It
//!   is never 0 unless the key was removed since.
//! - *G2 passes other keys that were set meanwhile*: they only lengthen the search; the key itself is where
//!   it was (TAB-1). A bucket that was full when the key was set is full for ever, so the search does not end
//!   before it.
//! - *G1 before X2*: the old table, as of X1 or with changes before it. All changes after X1 are in the new
//!   one only, and were not made before G1, so the reader is ordered before them. The old table stays
//!   allocated for as long as the reader is inside (EPO-1).
//! - *G1 after X2*: everything of X1 (release, acquire). X2 before X1 would show a table without keys that
//!   were set long before.
//! - *removed and set again between G2 and G3*: the new value, which is a value of this key all the same.

use alloc::boxed::Box;
use core::num::NonZeroU64;

use crate::epoch::{AlwaysPublished, Inside, Writer};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};

/// Places in a bucket, which is one cache line.
const WAYS: usize = 4;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    keys: [AtomicU64; WAYS],
    values: [AtomicU64; WAYS],
}

/// Where a bucket has a key.
enum KeyPlace<'a> {
    ThreadPlace(&'a AtomicU64),
    /// The key is not there; these are the places where it would be.
    Free(&'a AtomicU64, &'a AtomicU64),
    /// Other keys have all places.
    Further,
}

impl Bucket {
    #[inline]
    fn ask(&self, key: u64) -> KeyPlace<'_> {
        for (place, value) in self.keys.iter().zip(&self.values) {
            match place.load(Acquire) {
                found if found == key => return KeyPlace::ThreadPlace(value),
                0 => return KeyPlace::Free(place, value),
                _ => {}
            }
        }
        KeyPlace::Further
    }
}

#[derive(Debug)]
struct Buckets {
    buckets: Box<[Bucket]>,
    /// Number of low bits of a product that are not part of a bucket's number, less one.
    shift: u32,
    /// Number of keys that were ever set. Only the writer uses it. It is atomic because readers hold
    /// references to the rest.
    used: AtomicU64,
}

impl Buckets {
    /// A table with at least so many places.
    fn new(places: usize) -> Self {
        let buckets = places.div_ceil(WAYS).next_power_of_two();
        let shift = 63 - buckets.trailing_zeros();
        Self { buckets: (0..buckets).map(|_| Bucket::default()).collect(), shift, used: AtomicU64::new(0) }
    }
    /// The place of a key, or where it would be. Some places are free, so the search ends.
    #[inline]
    fn ask(&self, key: NonZeroU64) -> KeyPlace<'_> {
        // The product's top bits depend on all of the key (Knuth, TAOCP 3, 6.4); keys differ in both halves.
        let mixed = (key.get() ^ key.get() >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (mixed >> 1 >> self.shift) as usize;
        match self.buckets.get(first).map_or(KeyPlace::Further, |bucket| bucket.ask(key.get())) {
            KeyPlace::Further => self.ask_further(key, first),
            key_place => key_place,
        }
    }
    #[cold]
    fn ask_further(&self, key: NonZeroU64, first: usize) -> KeyPlace<'_> {
        let (sooner, later) = self.buckets.split_at(first.min(self.buckets.len()));
        let mut asked = later.iter().chain(sooner).map(|bucket| bucket.ask(key.get()));
        asked.find(|key_place| !matches!(key_place, KeyPlace::Further)).unwrap_or(KeyPlace::Further)
    }
    #[inline]
    fn value(&self, key: NonZeroU64) -> Option<NonZeroU64> {
        match self.ask(key) {
            KeyPlace::ThreadPlace(value) => NonZeroU64::new(value.load(Acquire)),
            KeyPlace::Free(..) | KeyPlace::Further => None,
        }
    }
    fn set(&self, key: NonZeroU64, value: u64) {
        match self.ask(key) {
            KeyPlace::ThreadPlace(place) => place.store(value, Release),
            KeyPlace::Free(place_of_key, place) => {
                place.store(value, Release);
                place_of_key.store(key.get(), Release);
                self.used.store(self.used.load(Relaxed) + 1, Relaxed);
            }
            KeyPlace::Further => {}
        }
    }
    fn is_full(&self) -> bool {
        (self.used.load(Relaxed) + 1) * 3 > (self.buckets.len() * WAYS) as u64 * 2
    }
    fn live(&self) -> impl Iterator<Item = (NonZeroU64, u64)> {
        let pair = |(key, value): (&AtomicU64, &AtomicU64)| {
            let value = value.load(Relaxed);
            Some((NonZeroU64::new(key.load(Relaxed))?, (value != 0).then_some(value)?))
        };
        self.buckets.iter().flat_map(|bucket| bucket.keys.iter().zip(&bucket.values)).filter_map(pair)
    }
}

/// The table in use.
#[derive(Debug)]
pub(crate) struct Table(AlwaysPublished<Buckets>);

impl Table {
    /// An empty table with room for so many keys.
    pub(crate) fn new(room: usize) -> Self {
        Self(AlwaysPublished::new(Box::new(Buckets::new(room * 2))))
    }
    /// The value that a key has.
    #[inline]
    pub(crate) fn get(&self, inside: &Inside<'_>, key: NonZeroU64) -> Option<NonZeroU64> {
        self.0.get(inside).value(key)
    }
    /// The value that a key has, for the writer.
    pub(crate) fn peek(&self, writer: &Writer, key: NonZeroU64) -> Option<NonZeroU64> {
        self.0.current(writer).value(key)
    }
    /// Sets a key's value; 0 removes it.
    pub(crate) fn set(&self, writer: &mut Writer, key: NonZeroU64, value: u64) {
        if self.0.current(writer).is_full() {
            self.grow(writer);
        }
        self.0.current(writer).set(key, value);
    }
    /// A twin of `set` that must fail: X2 before X1.
    #[cfg(all(test, loom))]
    pub(crate) fn set_in_a_table_shown_early(&self, writer: &mut Writer, key: NonZeroU64, value: u64) {
        let live: alloc::vec::Vec<_> = self.0.current(writer).live().collect();
        self.0.replace(writer, Box::new(Buckets::new((live.len() + 1) * 2)));
        let new = self.0.current(writer);
        live.into_iter().for_each(|(key, value)| new.set(key, value));
        self.set(writer, key, value);
    }
    /// X1 to X3.
    fn grow(&self, writer: &mut Writer) {
        let old = self.0.current(writer);
        let new = Buckets::new((old.live().count() + 1) * 2);
        old.live().for_each(|(key, value)| new.set(key, value));
        self.0.replace(writer, Box::new(new));
    }
}
