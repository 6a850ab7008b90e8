//! Where copies of displaced words may lie, and a module's stubs, and islands if those are too far.
//!
//! In: what is mapped; the original's address. Out: a free place near it: the way back from a copy is one
//! `b`, which reaches 128 MiB (Arm ARM C6.2.26). Invariants: SPACE-1: nothing is placed over, or right
//! beside, what is mapped, nor where the heap or the stack grows to, nor in the first 64 KiB.
//!
//! ```text
//!   near       room = the multiple of len nearest to at, with len bytes free on both sides; |room - at| <= REACH
//!   for_text   greater(text.1, room + len) - lesser(text.0, room) <= TEXT_REACH
//!   islands    count·LEN bytes, rounded up to pages, for as many neighbouring words as one place serves
//! ```
//!
//! Does not: map anything. Addresses may have as many bits as the kernel gives (48 or 52), so only gaps below
//! the last mapping are used.

use super::island;
use crate::AddressSpace;
use crate::plan::Region;
use crate::space::PAGE;
use trapline_record::RemoteAddr;

/// Distance that a `b` certainly reaches, from anywhere in a room of [`LEN`] bytes.
pub const REACH: u64 = (128 << 20) - (1 << 20);
/// Bytes of a room: a multiple of every page size. If there is no gap of this length, a page will do.
pub const LEN: u64 = 64 << 10;
/// Distance that a `b` reaches, less a page.
const TEXT_REACH: u64 = (128 << 20) - PAGE;
const BOTTOM: u64 = 64 << 10;
/// Bytes kept free above the heap's end.
const HEAP_GROWTH: u64 = 64 << 20;

/// Whether a `b` leads from anywhere in the room at `room` to `at`, and back.
#[must_use]
pub const fn reaches(room: RemoteAddr, at: RemoteAddr) -> bool {
    room.0.abs_diff(at.0) <= REACH
}

/// The free place for a room of `len` bytes (pages, a power of two) that is nearest to `at`, if a `b` leads
/// back from there.
#[must_use]
pub fn near(space: &AddressSpace, at: RemoteAddr, len: u64) -> Option<RemoteAddr> {
    let heap = space.heap_end.map(|end| (end.0, end.0.saturating_add(HEAP_GROWTH)));
    let mut taken: Vec<(u64, u64)> =
        space.occupied.iter().map(|range| (range.0.0, range.1.0)).chain(heap).collect();
    taken.sort_unstable();
    let mut low = BOTTOM;
    let mut best: Option<u64> = None;
    for (start, end) in taken {
        best = closer(best, in_gap((low, start), at.0, len), at.0);
        low = low.max(end);
    }
    best.map(RemoteAddr).filter(|&room| reaches(room, at))
}

/// The place in a gap that is nearest to `at`, with `len` bytes free on both sides.
fn in_gap((low, high): (u64, u64), at: u64, len: u64) -> Option<u64> {
    let first = low.checked_add(len)?.next_multiple_of(len);
    let last = (high.checked_sub(2 * len)?) & !(len - 1);
    (first <= last).then(|| (at & !(len - 1)).clamp(first, last))
}

fn closer(a: Option<u64>, b: Option<u64>, at: u64) -> Option<u64> {
    a.into_iter().chain(b).min_by_key(|place| place.abs_diff(at))
}

/// A free range of `len` bytes, near enough that a `b` leads from anywhere in `text` to anywhere in it, and
/// back; the nearest one.
pub(super) fn for_text(space: &AddressSpace, text: (u64, u64), len: u64) -> Option<RemoteAddr> {
    let reaches = |at: u64| text.1.max(at + len) - text.0.min(at) <= TEXT_REACH;
    let mut best: Option<u64> = None;
    let mut consider = |at: u64| {
        if space.is_free(RemoteAddr(at), RemoteAddr(at + len))
            && reaches(at)
            && best.is_none_or(|best| at.abs_diff(text.0) < best.abs_diff(text.0))
        {
            best = Some(at);
        }
    };
    for &(start, end) in &space.occupied {
        // Above what is mapped, and below it, each with a page in between.
        consider((end.0 + PAGE).next_multiple_of(PAGE));
        if let Some(below) = start.0.checked_sub(len + PAGE) {
            consider(below & !(PAGE - 1));
        }
    }
    if let Some(heap) = space.heap_end {
        consider((heap.0 + HEAP_GROWTH).next_multiple_of(PAGE));
    }
    best.map(RemoteAddr)
}

/// Where islands lie: a number of pages, each for as many neighbouring words as one place serves.
#[derive(Debug, Default)]
pub(super) struct Islands {
    /// Sorted, disjoint.
    pub(super) regions: Vec<Region>,
    /// For each word, the address of its island.
    pub(super) at: Vec<RemoteAddr>,
}

/// Chooses islands for the words at `sites`, which are sorted: each is reached by a `b` from its word, and
/// reaches back. Marks their pages as occupied.
///
/// # Errors
/// Index of the first word that has no room near it.
pub(super) fn for_islands(space: &mut AddressSpace, sites: &[u64]) -> Result<Islands, usize> {
    let mut islands = Islands::default();
    while let Some(&first) = sites.get(islands.at.len()) {
        let rest = &sites[islands.at.len()..];
        let pages = |count: usize| (count as u64 * island::LEN).next_multiple_of(PAGE);
        let of = |count: usize| for_text(space, (first, rest[count - 1] + 4), pages(count));
        // A place that serves so many words also serves fewer: search for the largest number by halving.
        let (mut served, mut too_many) = (0, rest.len() + 1);
        while served + 1 < too_many {
            let count =
                if served == 0 && too_many > rest.len() { rest.len() } else { (served + too_many) / 2 };
            *if of(count).is_some() { &mut served } else { &mut too_many } = count;
        }
        if served == 0 {
            return Err(islands.at.len());
        }
        let at = of(served).ok_or(islands.at.len())?;
        space.occupy(at, at + pages(served));
        islands.regions.push(Region { addr: at, len: pages(served) });
        islands.at.extend((0..served as u64).map(|nth| at + nth * island::LEN));
    }
    islands.regions.sort_unstable_by_key(|region| region.addr);
    Ok(islands)
}

#[cfg(test)]
mod tests {
    use super::{LEN, for_islands, near, reaches};
    use crate::AddressSpace;
    use trapline_record::RemoteAddr;

    fn space(occupied: &[(u64, u64)], heap_end: Option<u64>) -> AddressSpace {
        let occupied = occupied.iter().map(|&(start, end)| (RemoteAddr(start), RemoteAddr(end))).collect();
        AddressSpace { occupied, heap_end: heap_end.map(RemoteAddr) }
    }

    #[test]
    fn the_nearest_gap_is_taken_with_room_to_spare() {
        // 52 bits; a gap below, and a small one above.
        let text = 0x000F_FFFF_8000_0000;
        let all = space(&[(text, text + 0x10_0000), (text + 0x12_0000, text + 0x13_0000)], None);
        let at = RemoteAddr(text + 0xF_0000);
        assert_eq!(near(&all, at, LEN), Some(RemoteAddr(text - 2 * LEN)));
        let wide = space(&[(text, text + 0x10_0000), (text + 0x20_0000, text + 0x21_0000)], None);
        assert_eq!(near(&wide, at, LEN), Some(RemoteAddr(text + 0x10_0000 + LEN)));
        // The heap grows into that one.
        let heap =
            space(&wide.occupied.iter().map(|r| (r.0.0, r.1.0)).collect::<Vec<_>>(), Some(text + 0x10_0000));
        assert_eq!(near(&heap, at, LEN), Some(RemoteAddr(text - 2 * LEN)));
        // A page is taken between, with one to spare on both sides.
        let tight = space(
            &[(text - (1 << 28), text + 0x10_0000), (text + 0x10_3000, text + (1 << 28)), (1 << 54, 1 << 55)],
            None,
        );
        assert_eq!(near(&tight, at, LEN), None);
        assert_eq!(near(&tight, at, 4096), Some(RemoteAddr(text + 0x10_1000)));
    }

    /// 900 MiB of text, with a hole of one page behind 250 MiB and one of two behind 450: what lies further
    /// from both than a `b` reaches has no island.
    #[test]
    fn neighbours_share_an_island() {
        const MIB: u64 = 1 << 20;
        let text = 0x1_0000_0000;
        let (first, second) = (text + 250 * MIB, text + 450 * MIB);
        let occupied = [
            (0, first),
            (first + 3 * 4096, second),
            (second + 4 * 4096, text + 900 * MIB),
            (1 << 40, 1 << 41),
        ];
        let all = space(&occupied, None);
        let served = |sites: &[u64]| for_islands(&mut all.clone(), sites);
        let near = |at: u64, n: u64| (at..).step_by(4).take(n as usize);
        // A page has room for 64: of more, those that the second hole reaches take that one.
        let sites: Vec<u64> = near(text + 340 * MIB, 60).chain(near(text + 350 * MIB, 60)).collect();
        let islands = served(&sites).expect("in reach of both");
        assert_eq!(islands.regions.iter().map(|one| one.addr.0).collect::<Vec<_>>(), [second + 4096]);
        let one = served(&sites[..64]).expect("in reach of both");
        assert_eq!(
            one.regions.iter().map(|one| (one.addr.0, one.len)).collect::<Vec<_>>(),
            [(first + 4096, 4096)]
        );
        let far: Vec<u64> = near(text + 200 * MIB, 3).chain(near(text + 500 * MIB, 3)).collect();
        let islands = served(&far).expect("each has one");
        assert_eq!(islands.regions.len(), 2);
        for (site, island) in far.iter().zip(&islands.at) {
            assert!(islands.regions.iter().any(|region| region.contains(*island)));
            assert!(trapline_insn::aarch64::encode::b(*site, island.0).is_some(), "{site:#x} {island}");
        }
        let alone = [text + 250 * MIB, text + 100 * MIB].map(|at| served(&[at]).is_ok());
        assert_eq!(alone, [true, false]);
        assert_eq!(served(&[far[0], text + 650 * MIB, text + 660 * MIB]).map(|_| ()), Err(1));
        // Each has an island of its own.
        let mut all: Vec<u64> = one.at.iter().map(|at| at.0).collect();
        all.dedup();
        assert!(all.len() == 64 && all.windows(2).all(|two| two[1] - two[0] == super::island::LEN));
    }

    #[test]
    fn what_no_branch_reaches_is_no_room() {
        let text = 0x1_0000_0000;
        let full = space(&[(text - (1 << 28), text + (1 << 28)), (1 << 40, (1 << 40) + 4096)], None);
        assert_eq!([LEN, 4096].map(|len| near(&full, RemoteAddr(text), len)), [None; 2]);
        assert!(reaches(RemoteAddr(text - (100 << 20)), RemoteAddr(text)));
        assert!(!reaches(RemoteAddr(text - (128 << 20)), RemoteAddr(text)));
    }
}
