//! Where generated code and its data may lie.
//!
//! In: what is mapped. Out: a displacement K whose bytes all trap, and the module space that it leads to.
//! Invariants: SPACE-1 nothing is placed over, or right beside, what is mapped, nor where the heap grows to,
//! nor in the first 64 KiB; SPACE-2 module, data alias and code region lie within 2 GiB of each other, end to
//! end.

use crate::plan::Region;
use crate::refusal::PlanError;
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
/// Distance that a rel32 certainly reaches, whichever instruction it ends.
pub(crate) const REACH: u64 = (1 << 31) - (64 << 10);

/// One-byte opcodes that trap in 64-bit mode: `int3`, then those that no processor runs.
pub(crate) const TRAPPING: [u8; 20] = [
    0xCC, 0x60, 0x61, 0x3F, 0x37, 0x2F, 0x27, 0x1F, 0x1E, 0x17, 0x16, 0x0E, 0x07, 0x06, 0xCE, 0xD4, 0xD6,
    0xEA, 0x9A, 0x82,
];

/// A picture of a process' address space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AddressSpace {
    /// What is mapped: half-open ranges, sorted, not overlapping.
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
        let (start, end) = (start.0, end.0);
        if start >= end || start < BOTTOM || end > self.top() {
            return false;
        }
        if self.heap_end.is_some_and(|h| start < h.0.saturating_add(HEAP_GROWTH) && end > h.0) {
            return false;
        }
        let (low, high) = (start - PAGE, end + PAGE);
        let next = self.occupied.partition_point(|r| r.1.0 <= low);
        self.occupied.get(next).is_none_or(|r| r.0.0 >= high)
    }

    /// Whether one mapping covers all of `low..=high`.
    pub(crate) fn is_occupied(&self, low: RemoteAddr, high: RemoteAddr) -> bool {
        let next = self.occupied.partition_point(|r| r.1 <= low);
        self.occupied.get(next).is_some_and(|r| r.0 <= low && high < r.1)
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

/// What a module needs room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Need {
    /// Live range of the whole module, which displaced instructions may refer to.
    pub(crate) module: (RemoteAddr, RemoteAddr),
    /// Live range of the text that may be patched.
    pub(crate) text: (RemoteAddr, RemoteAddr),
    /// Bytes of the data alias.
    pub(crate) data: u64,
    /// Bytes behind the mirrored range.
    pub(crate) arena: u64,
}

/// A module's space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ModuleSpace {
    pub(crate) k: i32,
    pub(crate) data: Region,
    pub(crate) code: Region,
    /// First byte behind the mirrored range.
    pub(crate) arena: RemoteAddr,
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
    pub mirror_end: RemoteAddr,
    /// First byte that no batch has used.
    pub free: RemoteAddr,
}

impl CodeRegion {
    pub(crate) fn of(place: ModuleSpace) -> Self {
        let ModuleSpace { k, data, code, arena } = place;
        Self { k, data, code, mirror_end: arena, free: arena }
    }
    pub(crate) const fn place(&self) -> ModuleSpace {
        ModuleSpace { k: self.k, data: self.data, code: self.code, arena: self.mirror_end }
    }
    /// A space anywhere, for `data` and `stubs` bytes. No jump leads there, but traps do.
    #[must_use]
    pub fn anywhere(space: &AddressSpace, data: u64, stubs: u64) -> Option<Self> {
        let at = space.find(data + stubs)?;
        let (data, code) = (Region { addr: at, len: data }, Region { addr: at + data, len: stubs });
        Some(Self { k: displacements().next()?, data, code, mirror_end: code.addr, free: code.addr })
    }
}

/// The displacements to try: all bytes int3 first, then as many as possible; the small distances come first.
fn displacements() -> impl Iterator<Item = i32> {
    let pairs = TRAPPING.iter().flat_map(|&k2| TRAPPING.iter().map(move |&k3| (k2, k3)));
    pairs.map(|(k2, k3)| i32::from_le_bytes([0xCC, 0xCC, k2, k3]))
}

/// Chooses K and the space behind it.
///
/// # Errors
/// [`PlanError::NoSpace`] when no displacement leads to free memory.
pub(crate) fn choose(space: &AddressSpace, need: &Need) -> Result<ModuleSpace, PlanError> {
    let mut tried = 0;
    for k in displacements() {
        tried += 1;
        if let Some(place) = place_at(space, need, k) {
            return Ok(place);
        }
    }
    let len = need.data + (need.text.1 - need.text.0) + need.arena;
    Err(PlanError::NoSpace { text: need.text.0, need: len, tried })
}

fn place_at(space: &AddressSpace, need: &Need, k: i32) -> Option<ModuleSpace> {
    let shift = i64::from(k) + 5;
    let low = need.text.0.0.checked_add_signed(shift)? & !(PAGE - 1);
    let arena = need.text.1.0.checked_add_signed(shift)?.next_multiple_of(PAGE) + PAGE;
    let end = arena.checked_add(need.arena)?;
    let data = low.checked_sub(need.data)?;
    if !space.is_free(RemoteAddr(data), RemoteAddr(end)) {
        return None;
    }
    let (first, last) = (data.min(need.module.0.0), end.max(need.module.1.0));
    (last - first <= REACH).then(|| ModuleSpace {
        k,
        data: Region { addr: RemoteAddr(data), len: need.data },
        code: Region { addr: RemoteAddr(low), len: end - low },
        arena: RemoteAddr(arena),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(text: u64) -> Need {
        let text = (RemoteAddr(text), RemoteAddr(text + 0x10_0000));
        Need { module: text, text, data: 0x4000, arena: 0x10_0000 }
    }

    #[test]
    fn every_displacement_traps_everywhere() {
        let all: Vec<i32> = displacements().collect();
        assert_eq!(all.len(), 400);
        assert_eq!(all[0].to_le_bytes(), [0xCC; 4]);
        assert!(all.iter().all(|k| k.to_le_bytes().iter().all(|b| TRAPPING.contains(b))));
    }

    #[test]
    fn prefers_int3_and_keeps_off_what_is_there() {
        let mut space = AddressSpace::default();
        let text = 0x7f00_0000_0000;
        let first = choose(&space, &need(text)).unwrap();
        assert_eq!(first.k.to_le_bytes(), [0xCC; 4]);
        assert_eq!(first.data.end(), first.code.addr);
        space.occupy(first.code.addr, first.code.addr + 1);
        let second = choose(&space, &need(text)).unwrap();
        assert_ne!(second.k, first.k);
        assert!(space.is_free(second.data.addr, second.code.end()));
    }

    #[test]
    fn a_program_at_4_mib_goes_above_its_heap_or_nowhere() {
        let space = AddressSpace {
            occupied: vec![(RemoteAddr(0x40_0000), RemoteAddr(0x80_0000))],
            heap_end: Some(RemoteAddr(0x6666_6666)),
        };
        let place = choose(&space, &need(0x40_0000)).unwrap();
        assert!(place.k > 0);
        assert!(!(place.data.addr.0 < 0x6666_6666 + HEAP_GROWTH && place.code.end().0 > 0x6666_6666));
        let full = AddressSpace { occupied: vec![(RemoteAddr(0), RemoteAddr(1 << 47))], heap_end: None };
        assert!(matches!(choose(&full, &need(0x40_0000)), Err(PlanError::NoSpace { tried: 400, .. })));
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
