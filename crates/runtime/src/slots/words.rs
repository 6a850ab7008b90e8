//! Where the words of slots lie: in the table's memory, or, in a model, in atomics of loom's, which take more room.
//!
//! In: a slot's number, taken modulo their count. Out: its byte and its entry's words. Does not: know what they say.

use trapline_record::slots::Slots;

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Release};

#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Words(Slots);

#[cfg(not(loom))]
impl Words {
    /// # Safety
    /// As [`Table::new`](super::Table::new).
    pub(super) const unsafe fn new(slots: Slots) -> Self {
        Self(slots)
    }
    #[inline]
    pub(crate) fn byte(&self, number: u32) -> &AtomicU8 {
        let at = self.0.table + Slots::LENT_OFF + u64::from(number & (self.0.count - 1));
        // SAFETY: inside the table (`new`), for good; a byte that nobody reaches otherwise.
        unsafe { &*(at as *const AtomicU8) }
    }
    /// The last step of B3.
    #[inline]
    pub(crate) fn frees(&self, number: u32) {
        self.byte(number).store(0, Release);
    }
    #[inline]
    pub(crate) fn word(&self, number: u32, off: u64) -> &AtomicU64 {
        let at = self.0.entry(number & (self.0.count - 1)) + off;
        // SAFETY: an aligned word of an entry, inside the table (`new`), for good.
        unsafe { &*(at as *const AtomicU64) }
    }
    /// Where a search for a free slot begins, by home.
    #[inline]
    pub(super) fn first(&self, home: u32) -> &AtomicU32 {
        let at = self.0.table + (u64::from(home) & (trapline_record::slots::HOMES - 1)) * 64;
        // SAFETY: as in `word`.
        unsafe { &*(at as *const AtomicU32) }
    }
}

#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct Words {
    bytes: alloc::vec::Vec<AtomicU8>,
    entries: alloc::vec::Vec<[AtomicU64; 8]>,
    first: AtomicU32,
}

#[cfg(loom)]
impl Words {
    /// # Safety
    /// None is needed: they are their own.
    pub(super) unsafe fn new(slots: Slots) -> Self {
        let count = slots.count as usize;
        let entry = || core::array::from_fn(|_| AtomicU64::new(0));
        Self {
            bytes: (0..count).map(|_| AtomicU8::new(0)).collect(),
            entries: (0..count).map(|_| entry()).collect(),
            first: AtomicU32::new(0),
        }
    }
    pub(crate) fn byte(&self, number: u32) -> &AtomicU8 {
        &self.bytes[number as usize & (self.bytes.len() - 1)]
    }
    /// An exchange: loom lets a thread read, behind a plain store of its own, what another's exchange has put there that read what stood there before, which no
    /// memory model allows.
    pub(crate) fn frees(&self, number: u32) {
        self.byte(number).swap(0, Release);
    }
    pub(crate) fn word(&self, number: u32, off: u64) -> &AtomicU64 {
        &self.entries[number as usize & (self.bytes.len() - 1)][off as usize / 8]
    }
    pub(super) fn first(&self, _home: u32) -> &AtomicU32 {
        &self.first
    }
}
