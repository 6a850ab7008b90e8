//! A picture of a process' address space, and the part of it that a module's code takes.
//!
//! In: what is mapped. Out: whether a range is free, and free ranges.
//! Invariant: SPACE-1 nothing is placed over, or right beside, what is mapped, nor where the heap or the main thread's
//! stack grows to, nor in the first 64 KiB.
//! Does not: choose where stubs lie (`code_region` of each processor).

use crate::plan::Region;
use trapline_record::RemoteAddr;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// First address that user space cannot use (47 bits), less a page.
const TOP: u64 = (1 << 47) - PAGE;
/// The same limit for 48 bits, as on arm64.
const HIGH_TOP: u64 = (1 << 48) - PAGE;
const BOTTOM: u64 = 64 << 10;
/// Bytes kept free above the heap's end.
pub(crate) const HEAP_GROWTH: u64 = 64 << 20;
/// Bytes kept free there, if there is room elsewhere.
pub(crate) const ROOMY_HEAP: u64 = 1 << 30;

/// A picture of a process' address space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AddressSpace {
    /// What is mapped, and what the stack may grow to: half-open ranges, sorted, not overlapping.
    pub occupied: Vec<(RemoteAddr, RemoteAddr)>,
    /// End of the heap that grows by `brk`, if there is one.
    pub heap_end: Option<RemoteAddr>,
}

impl AddressSpace {
    /// Adds a range (a module's space that was just planned).
    pub fn occupy(&mut self, start: RemoteAddr, end: RemoteAddr) {
        let at = self.occupied.partition_point(|r| r.0 < start);
        self.occupied.insert(at, (start, end));
    }

    /// The lowest address that is too high. Something mapped between 47 and 48 bits shows that the kernel
    /// hands out such addresses.
    fn top(&self) -> u64 {
        let above = self.occupied.partition_point(|r| r.1.0 <= TOP + PAGE);
        let is_high = self.occupied.get(above).is_some_and(|r| r.0.0 < HIGH_TOP);
        if is_high { HIGH_TOP } else { TOP }
    }

    /// Whether `start..end`, with a page on either side, is free and usable (SPACE-1).
    #[must_use]
    pub fn is_free(&self, start: RemoteAddr, end: RemoteAddr) -> bool {
        self.is_free_beyond(HEAP_GROWTH, (start, end))
    }
    /// The same, with so many bytes kept free above the heap's end.
    pub(crate) fn is_free_beyond(&self, growth: u64, (start, end): (RemoteAddr, RemoteAddr)) -> bool {
        let (start, end) = (start.0, end.0);
        if start >= end || start < BOTTOM || end > self.top() {
            return false;
        }
        if self.heap_end.is_some_and(|h| start < h.0.saturating_add(growth) && end > h.0) {
            return false;
        }
        let (low, high) = (start - PAGE, end + PAGE);
        let next = self.occupied.partition_point(|r| r.1.0 <= low);
        self.occupied.get(next).is_none_or(|r| r.0.0 >= high)
    }

    /// Free ranges near `low..high`, in order: any whole pages that lie in one of them are free ([`Self::is_free`]).
    /// `own` is not free either.
    pub(crate) fn gaps(&self, low: u64, high: u64, own: (RemoteAddr, RemoteAddr)) -> Vec<(u64, u64)> {
        let apart = |&(start, end): &(RemoteAddr, RemoteAddr)| {
            (start.0.saturating_sub(PAGE), end.0.saturating_add(PAGE))
        };
        let from = self.occupied.partition_point(|r| r.1.0.saturating_add(PAGE) <= low);
        let mapped = self.occupied[from..].iter().take_while(|r| r.0.0 < high.saturating_add(PAGE));
        let mut taken: Vec<(u64, u64)> = mapped.chain([&own]).map(apart).collect();
        taken.extend(self.heap_end.map(|heap| (heap.0, heap.0.saturating_add(HEAP_GROWTH))));
        taken.sort_unstable();
        let (mut at, end) = (low.max(BOTTOM), high.min(self.top()));
        let mut gaps = Vec::new();
        for (start, behind) in taken.into_iter().chain([(end, end)]) {
            if at < start.min(end) {
                gaps.push((at, start.min(end)));
            }
            at = at.max(behind);
        }
        gaps
    }

    /// A free range of `len` bytes (whole pages) anywhere, away from what grows. Used for entry stamps.
    #[must_use]
    pub fn find(&self, len: u64) -> Option<RemoteAddr> {
        let mut above = self.top();
        for &(start, end) in self.occupied.iter().rev() {
            if let Some(at) = self.top_of(end.0, above, len) {
                return Some(at);
            }
            above = above.min(start.0);
        }
        self.top_of(BOTTOM, above, len)
    }

    /// A range in the middle of a gap, so that stacks above it and mappings below it both keep room to grow.
    fn top_of(&self, low: u64, high: u64, len: u64) -> Option<RemoteAddr> {
        let spare = high.checked_sub(low)?.checked_sub(len)?;
        let at = RemoteAddr((low + spare / 2) & !(PAGE - 1));
        self.is_free(at, at + len).then_some(at)
    }
}

/// A module's space that one batch after another is planned into, so that they share its displacement. Stubs
/// lie behind the mirrored range. The mirrored range itself holds one jump for each site, since it is not
/// known yet which sites come next to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeRegion {
    /// The module's displacement K.
    pub k: i32,
    /// Where the data part is mapped.
    pub data: Region,
    /// Where the code region is mapped: mirrored range, shared code, stubs.
    pub code: Region,
    /// First byte behind the mirrored range.
    pub mirrored_end: RemoteAddr,
    /// First byte that no batch has used.
    pub free: RemoteAddr,
}

#[cfg(test)]
mod tests {
    use super::{AddressSpace, BOTTOM, HEAP_GROWTH, PAGE};
    use trapline_record::RemoteAddr;

    #[test]
    fn gaps_are_what_is_free() {
        let at = |page: u64| RemoteAddr(BOTTOM + page * PAGE);
        let occupied = vec![(at(4), at(7)), (at(7), at(8)), (at(13), at(14)), (at(30), at(31))];
        let own = (at(20), at(22));
        let with_heap = |heap_end| AddressSpace { occupied: occupied.clone(), heap_end };
        for space in [with_heap(None), with_heap(Some(at(26))), with_heap(Some(RemoteAddr(at(10).0 - 1)))] {
            let mut alone = space.clone();
            alone.occupied.push(own);
            alone.occupied.sort_unstable();
            let gaps = space.gaps(0, at(64).0 + HEAP_GROWTH, own);
            for (low, high) in (0..64).flat_map(|low| (low + 1..64).map(move |high| (at(low), at(high)))) {
                let within = gaps.iter().any(|gap| gap.0 <= low.0 && high.0 <= gap.1);
                assert_eq!(within, alone.is_free(low, high), "{low}..{high} {gaps:x?}");
            }
        }
    }

    #[test]
    fn find_leaves_gaps() {
        let space = AddressSpace {
            occupied: vec![
                (RemoteAddr(0x40_0000), RemoteAddr(0x80_0000)),
                (RemoteAddr(0x7fff_0000_0000), RemoteAddr(0x7fff_1000_0000)),
            ],
            heap_end: Some(RemoteAddr(0x80_0000)),
        };
        let at = space.find(64 << 20).unwrap();
        assert!(space.is_free(at, at + (64 << 20)));
    }
}
