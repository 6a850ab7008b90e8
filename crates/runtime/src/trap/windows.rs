//! Patched windows, as handlers see them: where a thread inside a window goes on, and which original address
//! belongs to displaced code.
//!
//! In: for the writer (`patch`), guards and the code of each batch; for handlers, an address. Out: another
//! address. Invariants: WIN-1 a guard leads to the copy of the present patch there, or of the last one. WIN-2
//! what is recorded about code is true for as long as the code is mapped, which is for good.
//! Does not: write code, or know what a patch is for.
//!
//! | writer | handler |
//! |---|---|
//! | W1 code is written, and its guards are added ([`Windows::add`]) | H1 a byte in a window traps, or code faults |
//! | W2 the bytes that trap are written | H2 look up |
//!
//! H1 is after W2 of that byte. If another batch leads the same address elsewhere between H1 and H2, the
//! thread goes on in the newer copy of the same instructions. Guards are never removed: a thread may come
//! back to a window from a signal's frame long after.
//!
//! An address may turn from an interior boundary into a site and back while its byte traps all the time. The
//! writer reports the new state before it removes the old one, so at least one of them is there at any
//! moment. But code that looks for a guard, then for a site, may miss each. So such turns are counted
//! (`Windows::turns`), after each change of a guard: a lookup that found nothing counts only if no turn came
//! meanwhile.
//!
//! A batch's guards are a sorted list, as they come. Guards that change later, and those of batches with few,
//! are in a table that is searched before all lists. Batches in one stretch of code are merged when a new one
//! is at least as large as those before it, so that many small batches end up in few lists. The smaller lists
//! stay for threads that are just reading them.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::trap_table::TrapTable;

/// Maximum number of a batch's guards that go into the table one by one.
const FEW: usize = 64;
/// Value in the table: no guard here, whatever the lists contain.
const NONE: u64 = 1;

/// Generated code: its addresses, and which parts of it are copies of the program's code.
#[derive(Debug)]
pub struct Code {
    region: Range<u64>,
    /// (first address, where a thread from there on would be without us; 0 for what is no copy), sorted.
    originals: Box<[(u64, u64)]>,
    /// (address inside a window, where its thread goes on), sorted.
    guards: Box<[(u64, u64)]>,
    next: AtomicPtr<Self>,
}

impl Code {
    fn guard(&self, addr: u64) -> Option<u64> {
        let found = self.guards.binary_search_by_key(&addr, |guard| guard.0).ok()?;
        self.guards.get(found).map(|guard| guard.1)
    }
    /// Whether a batch without guards in the same stretch of code is merged with this one: it is, if the new
    /// batch is no smaller.
    fn takes(&self, region: &Range<u64>, originals: &[(u64, u64)], guards: &[(u64, u64)]) -> bool {
        self.region == *region
            && self.guards.is_empty()
            && guards.is_empty()
            && self.originals.len() <= originals.len()
    }
    fn original(&self, pc: u64) -> Option<u64> {
        let after = self.originals.partition_point(|copy| copy.0 <= pc);
        let &(_, original) = self.originals.get(after.checked_sub(1)?)?;
        (original != 0).then_some(original)
    }
}

/// What a batch adds.
#[derive(Debug, Default)]
pub struct Brought {
    /// Addresses of its code.
    pub region: Range<u64>,
    /// (first address, where a thread from there on would be without us; 0 if not known), sorted.
    pub originals: Vec<(u64, u64)>,
    /// (address inside a window, where its thread goes on), sorted.
    pub guards: Vec<(u64, u64)>,
}

/// All windows of a process.
#[derive(Debug)]
pub struct Windows {
    changed: TrapTable,
    code: AtomicPtr<Code>,
    turns: AtomicU64,
}

impl Default for Windows {
    fn default() -> Self {
        Self { changed: TrapTable::new(0), code: AtomicPtr::new(ptr::null_mut()), turns: AtomicU64::new(0) }
    }
}

impl Windows {
    /// W1. For the writer.
    pub fn add(&self, brought: Brought) {
        let Brought { region, originals, mut guards } = brought;
        if guards.len() <= FEW {
            guards.drain(..).for_each(|(addr, resume)| self.lead(addr, resume));
        }
        let (mut originals, mut before) = (originals, self.code.load(Relaxed));
        // SAFETY: null, or code that was leaked here.
        let leaked = |at: *mut Code| unsafe { at.as_ref::<'static>() };
        while let Some(last) = leaked(before).filter(|last| last.takes(&region, &originals, &guards)) {
            originals.extend_from_slice(&last.originals);
            originals.sort_unstable_by_key(|copy| copy.0);
            before = last.next.load(Relaxed);
        }
        let (originals, guards) = (originals.into_boxed_slice(), guards.into_boxed_slice());
        let code = Code { region, originals, guards, next: AtomicPtr::new(before) };
        if !code.guards.is_empty() {
            self.changed
                .each(|addr, _| code.guard(addr).into_iter().for_each(|resume| self.lead(addr, resume)));
        }
        self.code.store(Box::into_raw(Box::new(code)), Release);
        self.turn();
    }
    /// A thread that traps at `addr` goes on at `resume` from now on. For the writer.
    pub fn lead(&self, addr: u64, resume: u64) {
        self.changed.set(addr, resume);
        self.turn();
    }
    fn turn(&self) {
        self.turns.store(self.turns.load(Relaxed) + 1, Release);
    }
    /// Number of changes of guards.
    pub(super) fn turns(&self) -> u64 {
        self.turns.load(Acquire)
    }
    /// `addr` is no interior boundary any more: it has a trap of its own. For the writer.
    pub fn forget(&self, addr: u64) {
        if self.guard(addr).is_some() {
            self.changed.set(addr, NONE);
        }
    }
    /// Where a thread that trapped at `addr` goes on.
    #[inline]
    pub(super) fn guard(&self, addr: u64) -> Option<u64> {
        match self.changed.get(addr) {
            0 => self.code().find_map(|code| code.guard(addr)),
            NONE => None,
            resume => Some(resume),
        }
    }
    /// All batches, the newest first.
    fn code(&self) -> impl Iterator<Item = &'static Code> + use<> {
        // SAFETY: null, or code that `add` leaked. Acquire pairs with its release.
        let follow = |at: &AtomicPtr<Code>| unsafe { at.load(Acquire).as_ref::<'static>() };
        core::iter::successors(follow(&self.code), move |code| follow(&code.next))
    }
    fn at(&self, pc: u64) -> impl Iterator<Item = &'static Code> + use<> {
        self.code().filter(move |code| code.region.contains(&pc))
    }
    /// Whether our code is at `pc`.
    pub(super) fn has(&self, pc: u64) -> bool {
        self.at(pc).next().is_some()
    }
    /// Where a thread at `pc` would be without us, if `pc` is in a copy.
    pub(super) fn original(&self, pc: u64) -> Option<u64> {
        self.at(pc).find_map(|code| code.original(pc))
    }
}

#[cfg(test)]
mod tests {
    use super::{Brought, FEW, Windows};
    use alloc::vec::Vec;

    fn brought(originals: &[(u64, u64)], guards: Vec<(u64, u64)>) -> Brought {
        Brought { region: 0x1000..0x2000, originals: originals.into(), guards }
    }

    #[test]
    fn addresses_in_copies_stand_for_originals() {
        let windows = Windows::default();
        windows.add(brought(&[(0x1010, 0x500), (0x1014, 0x504), (0x1018, 0x508), (0x101d, 0)], Vec::new()));
        // A later batch in the same stretch of code.
        windows.add(brought(&[(0x1100, 0x700), (0x1105, 0)], Vec::new()));
        let at = |pc| windows.original(pc);
        let known = [0x1010, 0x1013, 0x1014, 0x101c, 0x1104].map(at);
        assert_eq!(known, [Some(0x500), Some(0x500), Some(0x504), Some(0x508), Some(0x700)]);
        assert_eq!([0x100f, 0x101d, 0x1105, 0x2000].map(at), [None; 4]);
        assert!(windows.has(0x1fff) && !windows.has(0x2000));
    }

    #[test]
    fn the_last_word_on_a_guard_counts() {
        let windows = Windows::default();
        let many = |by: u64| (0..=FEW as u64).map(|n| (0x500 + n, 0x1000 + by + n)).collect();
        windows.add(brought(&[], many(0x100)));
        assert_eq!((windows.guard(0x503), windows.guard(0x4ff)), (Some(0x1103), None));
        windows.add(brought(&[], [(0x503, 0x1999)].into()));
        assert_eq!((windows.guard(0x503), windows.guard(0x504)), (Some(0x1999), Some(0x1104)));
        windows.forget(0x504);
        assert_eq!(windows.guard(0x504), None);
        windows.add(brought(&[], many(0x200)));
        assert_eq!((windows.guard(0x503), windows.guard(0x504)), (Some(0x1203), Some(0x1204)));
    }
}
