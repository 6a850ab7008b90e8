//! A stack word's place: a hint at its call's instance, and room for a call that is kept in place.
//! [`instances`](super) describes the protocol.
//!
//! In: stack pointers, probes. Out: the address that was hit. Invariants: CAL-4: a bound place is written
//! only by calls at its stack word. One of these goes on at a time, so they need no bus lock. The places of a
//! stack page lie together, so two threads share a cache line of places only by accident.
//! Does not: unbind.

use super::hints::{HINT_SHIFT, HINT_SPREAD, Hint};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release};

/// A place; all zero is one that is not bound.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct KeptPlace {
    pub(crate) hint: Hint,
    /// The stack pointer of the calls that may be kept here, for good; 0: not bound yet.
    pub(crate) bound: AtomicU64,
    /// The probe of the call that is kept here; 0: none.
    pub(crate) keeps: AtomicU64,
    /// The address that this call hit.
    pub(crate) site: AtomicU64,
}

/// Like [`HINT_SHIFT`], for places, which are four times as large.
pub(crate) const PLACE_SHIFT: u32 =
    HINT_SHIFT - (size_of::<KeptPlace>() / size_of::<Hint>()).trailing_zeros();

#[cfg(not(loom))]
const _: () = assert!(size_of::<KeptPlace>() == 32);

impl KeptPlace {
    /// K1: binds the place, unless it is bound already.
    pub fn bind(&self, sp: u64) {
        if self.bound.load(Relaxed) == 0 {
            // The thread that comes second does without.
            let _first = self.bound.compare_exchange(0, sp, Relaxed, Relaxed);
        }
    }
    /// K2, as `general` of the processors does it. False if the place is bound to another stack word, or
    /// keeps another probe's call.
    #[must_use]
    pub fn begin(&self, sp: u64, probe: u64, site: u64) -> bool {
        let keeps = self.keeps.load(Relaxed);
        let is_free = self.bound.load(Relaxed) == sp && (keeps == 0 || keeps == probe);
        if is_free {
            self.site.store(site, Relaxed);
            self.keeps.store(probe, Release);
        }
        is_free
    }
    /// L1: returns the address that was hit, if this place keeps a call of that probe at that stack word, and
    /// empties the place.
    #[inline]
    #[must_use]
    pub fn end(&self, sp: u64, probe: u64) -> Option<u64> {
        let is_its = self.bound.load(Relaxed) == sp && self.keeps.load(Acquire) == probe;
        is_its.then(|| {
            let site = self.site.load(Relaxed);
            self.keeps.store(0, Release);
            site
        })
    }
    /// A twin of `bind` that must fail: a look, then a store.
    #[cfg(all(test, loom))]
    pub(crate) fn bind_in_two_steps(&self, sp: u64) {
        if self.bound.load(Relaxed) == 0 {
            self.bound.store(sp, Relaxed);
        }
    }
}

/// All places of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptPlaces(&'static [KeptPlace]);

impl KeptPlaces {
    /// Places in zeroed memory; `None` unless their number is a power of two.
    pub(crate) const fn new(places: &'static [KeptPlace]) -> Option<Self> {
        if places.len().is_power_of_two() { Some(Self(places)) } else { None }
    }
    /// Length of all places but one, in bytes.
    pub(crate) const fn mask(&self) -> u64 {
        ((self.0.len() - 1) * size_of::<KeptPlace>()) as u64
    }
    /// The place of a stack pointer.
    #[inline]
    pub(crate) fn of(&self, sp: u64) -> &'static KeptPlace {
        let at =
            (sp.wrapping_mul(HINT_SPREAD) >> PLACE_SHIFT & self.mask()) as usize / size_of::<KeptPlace>();
        // SAFETY: the mask is the length less one, and the length a power of two (`new`).
        unsafe { self.0.get_unchecked(at) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{KeptPlace, KeptPlaces};

    /// Usual distances between the stacks of threads, and of coroutines.
    const APART: [u64; 7] =
        [64 << 10, 256 << 10, 1 << 20, 2 << 20, (2 << 20) + 4096, 8 << 20, (8 << 20) + 4096];
    const LINE_LEN: usize = 64;

    #[test]
    fn calls_of_a_page_have_places_of_their_own_and_stacks_share_no_line() {
        let places: std::vec::Vec<KeptPlace> = (0..1 << 18).map(|_| KeptPlace::default()).collect();
        let places: &'static [KeptPlace] = std::boxed::Box::leak(places.into_boxed_slice());
        let all = KeptPlaces::new(places).expect("a power of two");
        let place = |sp| core::ptr::from_ref(all.of(sp)).addr() - places.as_ptr().addr();
        for apart in APART {
            let mut lines = std::collections::HashMap::new();
            for stack in 0..32 {
                let calls = (0..256).map(|n| place(0x7f00_1234_4ff8 + stack * apart - n * 16));
                let places: std::collections::HashSet<_> = calls.collect();
                assert_eq!(places.len(), 256);
                for line in places.iter().map(|at| at / LINE_LEN) {
                    assert_eq!(*lines.entry(line).or_insert(stack), stack, "{apart:#x} apart");
                }
            }
        }
    }
}
