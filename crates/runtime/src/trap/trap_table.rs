//! Address → word, for handlers, without an epoch.
//!
//! In: for the writer, an address and a word; for handlers, an address. Out: the word; 0 if there is none.
//! Invariants: TAB-1; what was ever in a table stays readable, so a handler in a thread without a line may
//! look.
//! Does not: own what words lead to.
//!
//! Open addressing, at most half full. An address's place is set once. A table that is too small is replaced
//! and kept, so all tables together take at most twice the memory of the largest.
//!
//! - *set between a lookup's begin and its end*: seen or not. The writer that sets an address then writes the
//!   byte that traps there, so a trap that was executed finds it.
//! - *the table is replaced during a lookup*: the old one has what it had before its replacement; traps that
//!   are set later were not executed before.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use crate::sync::Leaked;

/// `addr` 0 means free; it is set once.
#[derive(Debug, Default)]
struct Cell {
    addr: AtomicU64,
    word: AtomicU64,
}

#[derive(Debug)]
struct Cells {
    places: Box<[Cell]>,
    used: AtomicU64,
}

impl Cells {
    fn leaked(room: usize) -> &'static Self {
        let places = (0..room.max(32).next_power_of_two() * 2).map(|_| Cell::default()).collect();
        Box::leak(Box::new(Self { places, used: AtomicU64::new(0) }))
    }
    /// The place of an address, or the free one where it would be: mostly where the search begins.
    #[inline]
    fn place(&self, addr: u64) -> Option<&Cell> {
        let mask = self.places.len().wrapping_sub(1);
        let first = (addr.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        match self.places.get(first & mask) {
            Some(place) if place.addr.load(Acquire) == addr => Some(place),
            _ => self.place_from(first, mask, addr),
        }
    }
    #[inline(never)]
    fn place_from(&self, first: usize, mask: usize, addr: u64) -> Option<&Cell> {
        let mut all =
            (0..self.places.len()).map_while(|step| self.places.get(first.wrapping_add(step) & mask));
        all.find(|place| {
            let found = place.addr.load(Acquire);
            found == addr || found == 0
        })
    }
    fn set(&self, addr: u64, word: u64) {
        let Some(place) = self.place(addr) else { return };
        place.word.store(word, Release);
        if place.addr.load(Relaxed) == 0 {
            place.addr.store(addr, Release);
            self.used.store(self.used.load(Relaxed) + 1, Relaxed);
        }
    }
    fn is_full(&self) -> bool {
        (self.used.load(Relaxed) + 1) * 2 > self.places.len() as u64
    }
}

/// The table in use.
#[derive(Debug)]
pub(super) struct TrapTable(Leaked<Cells>);

impl TrapTable {
    /// An empty table with room for so many addresses.
    pub(super) fn new(room: usize) -> Self {
        Self(Leaked::new(Cells::leaked(room)))
    }
    /// The word at an address. What was written before it was set is visible.
    #[inline]
    pub(super) fn get(&self, addr: u64) -> u64 {
        self.0.get().place(addr).map_or(0, |place| place.word.load(Acquire))
    }
    /// Sets the word at an address. For the writer.
    pub(super) fn set(&self, addr: u64, word: u64) {
        let mut table = self.0.get();
        if table.is_full() {
            let larger = Cells::leaked(table.places.len());
            self.each(|addr, word| larger.set(addr, word));
            self.0.set(larger);
            table = larger;
        }
        table.set(addr, word);
    }
    /// Visits all addresses and words. For the writer.
    pub(super) fn each(&self, mut see: impl FnMut(u64, u64)) {
        for place in &self.0.get().places {
            let (addr, word) = (place.addr.load(Relaxed), place.word.load(Relaxed));
            if addr != 0 && word != 0 {
                see(addr, word);
            }
        }
    }
}
