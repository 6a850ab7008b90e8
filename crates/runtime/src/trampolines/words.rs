//! Where the words of return trampolines lie: in the table's memory, or, in a model, in loom's
//! atomics, which are larger.
//!
//! In: a trampoline's number, taken modulo their count. Out: its byte, and the words of its entry.
//! Does not: interpret them.

use trapline_record::trampolines::Trampolines;

use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Release};

#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct TableWords(Trampolines);

#[cfg(not(loom))]
impl TableWords {
    /// # Safety
    /// As for [`TrampolineTable::new`](super::TrampolineTable::new).
    pub(super) const unsafe fn new(trampolines: Trampolines) -> Self {
        Self(trampolines)
    }
    #[inline]
    pub(crate) fn byte(&self, number: u32) -> &AtomicU8 {
        let at = self.0.table + Trampolines::LENT_OFF + u64::from(number & (self.0.count - 1));
        // SAFETY: the address is inside the table, which stays mapped (`new`). The byte is reached only
        // through this atomic.
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
        // SAFETY: an aligned word of an entry, inside the table, which stays mapped (`new`).
        unsafe { &*(at as *const AtomicU64) }
    }
    /// Where a search for a free trampoline begins, for each CPU or each hash of a stack.
    #[inline]
    pub(super) fn first(&self, cpu: u32) -> &AtomicU32 {
        let at = self.0.table + (u64::from(cpu) & (trapline_record::trampolines::HINT_LINES - 1)) * 64;
        // SAFETY: as in `word`.
        unsafe { &*(at as *const AtomicU32) }
    }
}

#[cfg(loom)]
#[derive(Debug)]
pub(crate) struct TableWords {
    bytes: alloc::vec::Vec<AtomicU8>,
    entries: alloc::vec::Vec<[AtomicU64; 8]>,
    first: AtomicU32,
}

#[cfg(loom)]
impl TableWords {
    /// # Safety
    /// None: the words belong to this value.
    pub(super) unsafe fn new(trampolines: Trampolines) -> Self {
        let count = trampolines.count as usize;
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
    /// An exchange instead of a store. After a thread's own plain store, loom lets that thread read the value
    /// of another thread's exchange that read what was there before the store. No memory model allows that.
    pub(crate) fn frees(&self, number: u32) {
        self.byte(number).swap(0, Release);
    }
    pub(crate) fn word(&self, number: u32, off: u64) -> &AtomicU64 {
        &self.entries[number as usize & (self.bytes.len() - 1)][off as usize / 8]
    }
    pub(super) fn first(&self, _cpu: u32) -> &AtomicU32 {
        &self.first
    }
}
