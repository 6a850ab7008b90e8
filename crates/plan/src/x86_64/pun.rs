//! Punned jumps: only the first bytes of `jmp rel32` are written. The others are the following code's own,
//! and dictate part of the address that the jump leads to.
//!
//! In: a window of less than five bytes. Out: displacement and targets, in memory that is free. The code at
//! each target is one more jump, to the stub, so the targets must also be within reach of the module's arena.
//!
//! ```text
//!   bytes at the site    E9 b0 b1 b2 b3, of which the first `free` are written
//!   target               site + JUMP + (b0 b1 b2 b3 as a signed number, b0 lowest)
//! ```
//!
//! Kernel uprobes and debuggers write an int3 over an instruction's first byte, and take it away. If an instruction
//! starts among the bytes that are not written, the jump then leads elsewhere. So there is a target for each such case:
//!
//! ```text
//!   e9 61 90 41 57       the function's last byte, two of padding; behind them push %r15     leads to the target
//!   e9 61 90 cc 57       another tool's int3 is on that function                             leads to another target
//! ```
//!
//! Invariant: PUN-1 whichever of the following instructions have an int3, the jump leads to the stub.

use super::jump::{INT3, JUMP, REACH, TRAPPING};
use crate::layout::SMALL_REGIONS;
use crate::plan::Region;
use crate::space::{AddressSpace, PAGE};
use trapline_record::RemoteAddr;

/// Number of planners for one module, which share its regions.
const PLANNERS: u32 = 2;

/// A punned jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pun {
    /// Its displacement.
    pub(crate) rel: [u8; 4],
    /// Where it leads.
    pub(crate) target: RemoteAddr,
    /// Bit `n`: another tool may have an int3 at byte `n` of the displacement.
    starts: u8,
}

impl Pun {
    /// Where it leads while other tools have an int3 in it.
    pub(crate) fn others(self) -> impl Iterator<Item = RemoteAddr> {
        let distance = |rel: [u8; 4]| i64::from(i32::from_le_bytes(rel));
        let to = move |some| self.target.offset(distance(with_traps(self.rel, some)) - distance(self.rel));
        subsets(self.starts).map(to).filter(move |other| *other != self.target)
    }
}

/// The sets of `starts`, without the empty one.
fn subsets(starts: u8) -> impl Iterator<Item = u8> {
    (1..=starts).filter(move |some| some & !starts == 0)
}

/// A displacement in which other tools have an int3 at these bytes.
fn with_traps(rel: [u8; 4], at: u8) -> [u8; 4] {
    core::array::from_fn(|n| if at >> n & 1 == 1 { INT3 } else { rel[n] })
}

/// The targets of punned jumps.
#[derive(Clone, Debug)]
pub(crate) struct Puns {
    /// Targets must be within reach of all of the module space.
    own: (RemoteAddr, RemoteAddr),
    /// Ranges of free memory within that reach, sorted.
    gaps: Vec<(u64, u64)>,
    /// Targets, five bytes each, in the order in which they were taken.
    targets: Vec<RemoteAddr>,
    /// Upper bound of the targets: each takes a region.
    most: usize,
}

impl Puns {
    /// `own`: the module space, which is not free.
    pub(crate) fn new(space: &AddressSpace, own: (RemoteAddr, RemoteAddr), regions: u32) -> Self {
        let most = (regions.min(SMALL_REGIONS) / PLANNERS) as usize;
        let gaps = space.gaps(own.1.0.saturating_sub(REACH) & !(PAGE - 1), own.0.0 + REACH + 2 * PAGE, own);
        Self { own, gaps, targets: Vec::new(), most }
    }

    /// Chooses the free bytes of a displacement. `window` holds the five bytes at live address `site`, of
    /// which the first `free` may change (1 to 4, the opcode included). Bit `n` of `boundaries` says that an
    /// instruction starts at byte `n`, bit `n` of `starts` the same of the other bytes.
    pub(crate) fn find(
        &mut self,
        site: RemoteAddr,
        window: [u8; 5],
        free: u64,
        (boundaries, starts): (u8, u8),
    ) -> Option<Pun> {
        if self.is_full() {
            return None;
        }
        let free = free.clamp(1, 4) as usize - 1;
        let choices: Vec<Vec<u8>> = (1..=4).map(|n| self.bytes_at(n, free, window[n], boundaries)).collect();
        let (starts, to) =
            (starts >> 1, |rel: [u8; 4]| (site + JUMP).offset(i64::from(i32::from_le_bytes(rel))));
        // Whether nothing between two displacements is usable, with the traps of other tools or without.
        let in_vain = |puns: &Self, low: [u8; 4], high: [u8; 4]| {
            let ends = |at| (to(with_traps(low, at)), to(with_traps(high, at)));
            core::iter::once(0).chain(subsets(starts)).map(ends).any(|(low, high)| puns.is_useless(low, high))
        };
        // High bytes vary last, so that all places of a page are tried before the next page's.
        for &b3 in &choices[3] {
            if in_vain(self, [0, 0, 0, b3], [0xFF, 0xFF, 0xFF, b3]) {
                continue;
            }
            for &b2 in &choices[2] {
                if in_vain(self, [0, 0, b2, b3], [0xFF, 0xFF, b2, b3]) {
                    continue;
                }
                for &b1 in &choices[1] {
                    if in_vain(self, [0, b1, b2, b3], [0xFF, b1, b2, b3]) {
                        continue;
                    }
                    for &b0 in &choices[0] {
                        let rel = [b0, b1, b2, b3];
                        let pun = Pun { rel, target: to(rel), starts };
                        if self.take(pun) {
                            return Some(pun);
                        }
                    }
                }
            }
        }
        None
    }

    /// The values that byte `n` of the jump may have. The lowest of several free bytes hardly matter, so few
    /// values are tried.
    fn bytes_at(&self, n: usize, free: usize, own: u8, boundaries: u8) -> Vec<u8> {
        if n > free {
            return vec![own];
        }
        if boundaries >> n & 1 == 1 {
            return TRAPPING.to_vec();
        }
        if n + 1 < free { vec![0xCC, 0x33] } else { (0..=255).step_by(3).collect() }
    }

    /// Takes all targets of a jump, if all of them are usable.
    fn take(&mut self, pun: Pun) -> bool {
        let before = self.targets.len();
        for target in core::iter::once(pun.target).chain(pun.others()) {
            if self.is_full() || !self.is_usable(target) {
                self.targets.truncate(before);
                return false;
            }
            self.targets.push(target);
        }
        true
    }

    fn is_usable(&self, target: RemoteAddr) -> bool {
        let end = target + JUMP;
        let region = region_of(target);
        let clear = |l: &RemoteAddr| *l + JUMP <= target || end <= *l;
        let gap = self.gaps[self.gap_behind(region.addr.0)..].first();
        gap.is_some_and(|gap| gap.0 <= region.addr.0 && region.end().0 <= gap.1)
            && self.is_near(target)
            && self.targets.iter().all(clear)
    }

    fn is_near(&self, target: RemoteAddr) -> bool {
        [self.own.0, self.own.1].iter().all(|own| target.0.abs_diff(own.0) < REACH)
    }

    /// Index of the first gap that ends behind an address.
    fn gap_behind(&self, at: u64) -> usize {
        self.gaps.partition_point(|gap| gap.1 <= at)
    }

    /// A quick check that no target in `low..=high` is usable: there is no gap, or all of it is out of reach.
    fn is_useless(&self, low: RemoteAddr, high: RemoteAddr) -> bool {
        let (start, end) = self.own;
        let far = |from: RemoteAddr| {
            low.0 >= from.0.saturating_add(REACH) || high.0 <= from.0.saturating_sub(REACH)
        };
        let gap = self.gaps[self.gap_behind(low.0 & !(PAGE - 1))..].first();
        let none = gap.is_none_or(|gap| gap.0 > high.0);
        low <= high && (none || far(start) || far(end))
    }

    /// The regions that hold all targets; sorted, disjoint.
    pub(crate) fn regions(&self) -> Vec<Region> {
        let mut regions: Vec<Region> = Vec::new();
        let mut targets = self.targets.clone();
        targets.sort_unstable();
        for target in targets {
            let new = region_of(target);
            match regions.last_mut().filter(|last| new.addr <= last.end()) {
                Some(last) => last.len = last.len.max(new.end() - last.addr),
                None => regions.push(new),
            }
        }
        regions
    }

    /// Takes over the targets of another planner; false if both need the same bytes.
    pub(crate) fn merge(&mut self, other: &Self) -> bool {
        let apart = |a: &RemoteAddr, b: &RemoteAddr| a.0.abs_diff(b.0) >= JUMP;
        let clear = other.targets.iter().all(|b| self.targets.iter().all(|a| apart(a, b)));
        self.targets.extend(&other.targets);
        clear
    }

    /// Whether no target can be taken any more.
    pub(crate) fn is_full(&self) -> bool {
        self.targets.len() >= self.most
    }
    /// A point to return to.
    pub(crate) fn mark(&self) -> usize {
        self.targets.len()
    }
    pub(crate) fn rollback(&mut self, mark: usize) {
        self.targets.truncate(mark);
    }
}

fn region_of(target: RemoteAddr) -> Region {
    let addr = RemoteAddr(target.0 & !(PAGE - 1));
    let end = (target.0 + JUMP).next_multiple_of(PAGE);
    Region { addr, len: end - addr.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_passed_over_is_of_no_use() {
        let at = RemoteAddr;
        let occupied = vec![(at(0x40_0000), at(0x48_1000)), (at(0x50_0000), at(0x50_2000))];
        let space = AddressSpace { occupied, heap_end: Some(at(0x60_0000)) };
        let low = (at(0x44_0000), at(0x46_0000));
        let high = (at(0x44_0000 + REACH), at(0x44_8000 + REACH));
        for (own, from) in [(low, 0x3F_0000), (high, 0x3F_0000), (low, 0x43_0000 + REACH)] {
            let puns = Puns::new(&space, own, SMALL_REGIONS);
            let (mut useless, mut useful) = (0, 0);
            for low in (from..from + 0x14_0000).step_by(256) {
                let usable = (low..low + 256).any(|target| puns.is_usable(at(target)));
                let is_useless = puns.is_useless(at(low), at(low + 255));
                assert!(!usable || !is_useless, "{low:#x} {own:?}");
                useless += u32::from(is_useless);
                useful += u32::from(usable);
            }
            assert!(useless > 0 && useful > 0, "{own:?} {from:#x}: {useless} {useful}");
        }
        assert!(!Puns::new(&space, low, 2).is_useless(at(0x45_0000), at(0x44_FF00)), "around zero");
    }
}
