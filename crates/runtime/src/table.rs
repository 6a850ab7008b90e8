//! A hash table of 64-bit keys and values: one writer, any readers, who neither lock nor store.
//!
//! In: keys and values, neither 0. Out: the value that a key had at some moment between call and return. Invariants: TAB-1 a key's place
//! never changes within a table, so a change of one key disturbs no reader of another; TAB-2 a value is seen only with
//! what was written before it was set. Does not: own what values stand for.
//!
//! # Steps
//!
//! Open addressing, linear probing, at most half full. A place's key is set once. A key that is taken out keeps its place, with value
//! 0; places are got back when the table is replaced by a larger one.
//!
//! | writer | reader, inside an epoch |
//! |---|---|
//! | S1 store the value (release) | G1 load the table (acquire) |
//! | S2 at a new place: store the key (release) | G2 load keys from the key's first place on (acquire), until it or 0 |
//! | X1 when half full: fill a new table with what has a value; X2 store the pointer (release); X3 the old one is unlinked | G3 load the value (acquire); 0 is none |
//!
//! - *G2 meets the place between S1 and S2*: key 0, so none: before the insertion. (Between S2 and S1, were they the other way
//!   round: value 0, so none as well. What counts is one store, S1 at an old place, S2 at a new one.)
//! - *G2 after S2*: G3 sees S1's value or a later one, and what was written before S1 (release, acquire): never 0 unless it was
//!   taken out since.
//! - *G2 passes other keys meanwhile set*: they only lengthen the walk; the key sought stands where it stood (TAB-1).
//! - *G1 before X2*: the old table, as of X1 or with changes before it. All changes after X1 are in the new one only, and were not
//!   made before G1: the reader is before them. It stays allocated for as long as the reader is inside (EPO-1).
//! - *G1 after X2*: everything of X1 (release, acquire). X2 before X1 would show a table without keys that have long been there.
//! - *taken out and put in again between G2 and G3*: the new value, a value of this key all the same.

use alloc::boxed::Box;
use core::num::NonZeroU64;

use crate::epoch::{Inside, Writer};
use crate::sync::{Acquire, AtomicPtr, AtomicU64, Relaxed, Release};

#[derive(Debug, Default)]
struct Place {
    key: AtomicU64,
    value: AtomicU64,
}

#[derive(Debug)]
struct Places {
    places: Box<[Place]>,
    /// Keys that were ever set. The writer's; a word of its own kind, as readers hold the rest by reference.
    used: AtomicU64,
}

impl Places {
    fn new(len: usize) -> Self {
        Self {
            places: (0..len.next_power_of_two()).map(|_| Place::default()).collect(),
            used: AtomicU64::new(0),
        }
    }
    /// The key's place, or the free one where it would be. Half of all are free, so the walk ends.
    #[inline]
    fn place(&self, key: NonZeroU64) -> Option<(&Place, bool)> {
        let mask = self.places.len() - 1;
        let first = (key.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        for step in 0..=mask {
            let place = self.places.get(first.wrapping_add(step) & mask)?;
            match place.key.load(Acquire) {
                0 => return Some((place, false)),
                found if found == key.get() => return Some((place, true)),
                _ => {}
            }
        }
        None
    }
    fn set(&self, key: NonZeroU64, value: u64) {
        if let Some((place, is_there)) = self.place(key) {
            place.value.store(value, Release);
            if !is_there {
                place.key.store(key.get(), Release);
                self.used.store(self.used.load(Relaxed) + 1, Relaxed);
            }
        }
    }
    fn live(&self) -> impl Iterator<Item = (NonZeroU64, u64)> {
        let pair = |place: &Place| {
            let value = place.value.load(Relaxed);
            Some((NonZeroU64::new(place.key.load(Relaxed))?, (value != 0).then_some(value)?))
        };
        self.places.iter().filter_map(pair)
    }
}

/// The table in use.
#[derive(Debug)]
pub(crate) struct Table(AtomicPtr<Places>);

impl Table {
    /// Empty, with room for some.
    pub(crate) fn new(room: usize) -> Self {
        Self(AtomicPtr::new(Box::into_raw(Box::new(Places::new(room.max(2) * 2)))))
    }
    /// The value that a key has.
    #[inline]
    pub(crate) fn get(&self, _inside: &Inside<'_>, key: NonZeroU64) -> Option<NonZeroU64> {
        // SAFETY: never null; what `set` replaces is freed after the grace of every reader that could load it (EPO-1), and this one
        // is inside.
        let places = unsafe { &*self.0.load(Acquire) };
        let (place, is_there) = places.place(key)?;
        if is_there { NonZeroU64::new(place.value.load(Acquire)) } else { None }
    }
    /// The value that a key has, for the writer.
    pub(crate) fn peek(&self, _writer: &Writer, key: NonZeroU64) -> Option<NonZeroU64> {
        // SAFETY: never null, and only the writer replaces it.
        let (place, is_there) = unsafe { &*self.0.load(Relaxed) }.place(key)?;
        if is_there { NonZeroU64::new(place.value.load(Relaxed)) } else { None }
    }
    /// Sets a key's value; 0 takes it out.
    pub(crate) fn set(&self, writer: &mut Writer, key: NonZeroU64, value: u64) {
        // SAFETY: never null, and only the writer replaces it.
        let places = unsafe { &*self.0.load(Relaxed) };
        if (places.used.load(Relaxed) + 1) * 2 > places.places.len() as u64 {
            self.grow(writer, places);
        }
        // SAFETY: as above.
        unsafe { &*self.0.load(Relaxed) }.set(key, value);
    }
    /// A twin of `set` that must fail: X2 before X1.
    #[cfg(all(test, loom))]
    pub(crate) fn set_in_a_table_shown_early(&self, writer: &mut Writer, key: NonZeroU64, value: u64) {
        // SAFETY: as above.
        let places = unsafe { &*self.0.load(Relaxed) };
        let new = Box::leak(Box::new(Places::new((places.live().count() + 1) * 4)));
        self.0.store(new, Release);
        places.live().for_each(|(key, value)| new.set(key, value));
        self.set(writer, key, value);
    }
    /// X1 to X3.
    fn grow(&self, writer: &mut Writer, places: &Places) {
        let new = Places::new((places.live().count() + 1) * 4);
        places.live().for_each(|(key, value)| new.set(key, value));
        let old = self.0.load(Relaxed);
        self.0.store(Box::into_raw(Box::new(new)), Release);
        // SAFETY: it came from `Box::into_raw`, here or in `new`, and no pointer leads to it any more.
        writer.unlinked(unsafe { Box::from_raw(old) });
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::into_raw`; whoever drops the table has it alone.
        drop(unsafe { Box::from_raw(self.0.load(Relaxed)) });
    }
}
