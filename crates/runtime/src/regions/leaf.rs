//! Hints: which mapping entry covers which addresses, by granules.
//!
//! A granule's word is 0 (no region), or one entry's [`Hint`] (the granule has pages of that region only).
//! Otherwise it is the address of a [`Leaf`] with a hint for each page (the granule has pages of several
//! regions, or had).

use core::num::NonZeroU64;

use trapline_record::RemoteAddr;

use crate::sync::{Acquire, AtomicU64, Release};

const PAGE_BITS: u32 = 12;
pub(super) const PAGE: u64 = 1 << PAGE_BITS;
/// A granule is 64 KiB, which code of one file seldom shares with another file's. A model's granule has two
/// pages.
const GRANULE_BITS: u32 = if cfg!(loom) { 13 } else { 16 };
pub(super) const GRANULE: u64 = 1 << GRANULE_BITS;
const PAGES: usize = (GRANULE / PAGE) as usize;
/// Number of entries that a hint can name.
pub(super) const MAX_ENTRIES: usize = 1 << 16;

/// An entry's number and 47 bits of its generation. These would wrap only after one change of the same entry
/// each microsecond for four years, between the two loads of one lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Hint(NonZeroU64);

impl Hint {
    /// Bit 0 distinguishes it from a leaf's address.
    pub(crate) const fn new(entry: u16, generation: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add((generation << 17 | (entry as u64) << 1) & !1))
    }
    #[inline]
    pub(super) const fn entry(self) -> u16 {
        (self.0.get() >> 1) as u16
    }
    /// Whether the hint is for an entry of that generation.
    #[inline]
    pub(super) const fn is_of(self, generation: u64) -> bool {
        self.0.get() >> 17 == generation << 17 >> 17
    }
    pub(super) const fn word(self) -> u64 {
        self.0.get()
    }
    /// The hint in a word; `None` if the word is 0.
    #[inline]
    pub(super) fn of(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }
}

/// A hint for each page of a granule, or 0.
#[derive(Debug)]
pub(super) struct Leaf([AtomicU64; PAGES]);

impl Leaf {
    pub(super) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }
    #[inline]
    fn word(&self, addr: RemoteAddr) -> &AtomicU64 {
        &self.0[(addr.0 >> PAGE_BITS) as usize % PAGES]
    }
    #[inline]
    fn get(&self, addr: RemoteAddr) -> Option<Hint> {
        NonZeroU64::new(self.word(addr).load(Acquire)).map(Hint)
    }
    /// Release: the entry is filled before its number becomes visible.
    pub(super) fn set(&self, page: RemoteAddr, hint: Option<Hint>) {
        self.word(page).store(hint.map_or(0, Hint::word), Release);
    }
}

/// What a granule's word leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Word {
    One(Hint),
    Leaf(&'static Leaf),
}

impl Word {
    #[inline]
    pub(super) fn new(word: NonZeroU64) -> Self {
        if word.get() & 1 == 1 {
            return Self::One(Hint(word));
        }
        // SAFETY: even words are addresses of leaves that `Map` leaked.
        Self::Leaf(unsafe { &*(word.get() as *const Leaf) })
    }
    /// L2.
    #[inline]
    pub(super) fn hint(self, addr: RemoteAddr) -> Option<Hint> {
        match self {
            Self::One(hint) => Some(hint),
            Self::Leaf(leaf) => leaf.get(addr),
        }
    }
}

/// The key of an address's granule in the table.
#[inline]
pub(super) const fn granule(addr: RemoteAddr) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(addr.0 >> GRANULE_BITS)
}

/// The granules of a range, by their first addresses.
pub(super) fn granules(start: RemoteAddr, end: RemoteAddr) -> impl Iterator<Item = RemoteAddr> {
    (start.0 & !(GRANULE - 1)..end.0).step_by(GRANULE as usize).map(RemoteAddr)
}

/// The pages of a granule.
pub(super) fn pages(granule: RemoteAddr) -> impl Iterator<Item = RemoteAddr> {
    (0..GRANULE / PAGE).map(move |page| granule + page * PAGE)
}
