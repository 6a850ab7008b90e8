//! Hints: which slot covers a page, for one granule of addresses.

use trapline_record::RemoteAddr;

use crate::sync::{Acquire, AtomicU32, Release};

const PAGE_BITS: u32 = 12;
/// A granule has 2 MiB; a model's has two pages.
pub(super) const GRANULE_BITS: u32 = if cfg!(loom) { 13 } else { 21 };
const PAGES: usize = 1 << (GRANULE_BITS - PAGE_BITS);
pub(super) const PAGE: u64 = 1 << PAGE_BITS;

/// A slot's number + 1 for each page, or 0.
#[derive(Debug)]
pub(super) struct Leaf([AtomicU32; PAGES]);

impl Leaf {
    pub(super) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU32::new(0)))
    }
    #[inline]
    fn word(&self, addr: RemoteAddr) -> &AtomicU32 {
        &self.0[(addr.0 >> PAGE_BITS) as usize % PAGES]
    }
    /// L2.
    #[inline]
    pub(super) fn hint(&self, addr: RemoteAddr) -> Option<u32> {
        self.word(addr).load(Acquire).checked_sub(1)
    }
    /// Release: the slot is filled before its number is seen.
    pub(super) fn set(&self, page: RemoteAddr, slot: Option<u32>) {
        self.word(page).store(slot.map_or(0, |slot| slot + 1), Release);
    }
}
