//! The arena, handed out in blocks, so that what runs at each hit lies close together.
//!
//! In: a stretch of addresses. Out: addresses, each once and in order within a lane. Does not: hold bytes.

use trapline_record::RemoteAddr;

/// Length in bytes of a block: a page.
const BLOCK: u64 = 4096;

/// Addresses that nothing has taken yet.
#[derive(Debug)]
pub(super) struct Arena {
    free: RemoteAddr,
    end: RemoteAddr,
}

/// Code of one kind. It fills one block after the other.
#[derive(Debug)]
pub(super) struct Lane {
    at: RemoteAddr,
    end: RemoteAddr,
}

impl Arena {
    pub(super) const fn new((free, end): (RemoteAddr, RemoteAddr)) -> Self {
        Self { free, end }
    }
    /// A lane that has all of it, and leaves nothing.
    pub(super) fn whole(&mut self) -> Lane {
        Lane { at: std::mem::replace(&mut self.free, self.end), end: self.end }
    }
    /// A lane without room. What is built there is in reach of the arena, so its length is right.
    pub(super) const fn lane(&self) -> Lane {
        Lane { at: self.free, end: self.free }
    }
    /// First address that neither a lane nor the arena has handed out, `lane` being the last lane.
    pub(super) fn first_free(&self, lane: &Lane) -> RemoteAddr {
        if lane.end == self.end { lane.at } else { self.free }
    }
}

impl Lane {
    /// The next address that is a multiple of `align`.
    pub(super) const fn next(&self, align: u64) -> RemoteAddr {
        RemoteAddr(self.at.0.next_multiple_of(align))
    }
    /// Whether `len` bytes from `at` on lie in the block.
    pub(super) const fn has(&self, at: RemoteAddr, len: u64) -> bool {
        at.0 + len <= self.end.0
    }
    /// Takes `len` bytes from `at` on.
    pub(super) fn take(&mut self, at: RemoteAddr, len: u64) {
        debug_assert!(self.at <= at && self.has(at, len));
        self.at = at + len;
    }
    /// Leaves the block for one with room for `len` bytes. False if the arena has none.
    pub(super) fn renew(&mut self, arena: &mut Arena, len: u64) -> bool {
        let len = len.max(BLOCK);
        let has = arena.free.0 + len <= arena.end.0;
        if has {
            // The block behind the last one extends it.
            if self.end != arena.free {
                self.at = arena.free;
            }
            self.end = arena.free + len;
            arena.free = self.end;
        }
        has
    }
}

#[cfg(test)]
mod tests {
    use super::{Arena, BLOCK};
    use trapline_record::RemoteAddr;

    #[test]
    fn emit_1_lanes_never_have_the_same_bytes() {
        let (start, end) = (RemoteAddr(0x10_0000), RemoteAddr(0x10_0000 + 10 * BLOCK));
        let mut arena = Arena::new((start, end));
        let mut lanes = [arena.lane(), arena.lane()];
        assert!(lanes.iter().all(|lane| lane.next(1) == start && !lane.has(start, 1)));
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for n in 0.. {
            let (lane, len) = (&mut lanes[n % 2], 60 + 400 * (n as u64 % 7));
            if !lane.has(lane.next(16), len) && !lane.renew(&mut arena, len + 16) {
                break;
            }
            let at = lane.next(16);
            lane.take(at, len);
            taken.push((at.0, at.0 + len));
        }
        taken.sort_unstable();
        assert!(taken.len() > 20 && taken.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{taken:x?}");
        assert!(taken.iter().all(|one| start.0 <= one.0 && one.1 <= end.0));
        assert!(taken.last().is_some_and(|last| last.1 <= arena.first_free(&lanes[0]).0));
    }

    #[test]
    fn a_lane_with_the_whole_arena_leaves_what_it_has_not_taken() {
        let mut arena = Arena::new((RemoteAddr(0x1000), RemoteAddr(0x9000)));
        let mut lane = arena.whole();
        lane.take(RemoteAddr(0x1000), 0x20);
        assert_eq!(arena.first_free(&lane), RemoteAddr(0x1020));
        assert!(!lane.has(RemoteAddr(0x1020), 0x8000) && !lane.renew(&mut arena, 0x8000));
    }
}
