//! Patches that are published in a process, by address.
//!
//! In: patches as they are published. Out: which patch is the latest at an address, and which one needs the
//! same bytes as another. Invariants: they are sorted, and no two need the same byte. Some may be gone with
//! their library.
//! Does not: read the process.

use std::collections::HashSet;

use trapline_plan::Patch;
use trapline_record::RemoteAddr;

/// All published patches of a process.
#[derive(Debug, Default)]
pub(crate) struct Held(Vec<Patch>);

impl Held {
    /// All of them, by address.
    pub(crate) fn all(&self) -> &[Patch] {
        &self.0
    }
    /// The one at an address.
    pub(crate) fn at(&self, addr: RemoteAddr) -> Option<&Patch> {
        let at = self.0.binary_search_by_key(&addr, |patch| patch.addr).ok()?;
        Some(&self.0[at])
    }
    /// Forgets those at these addresses.
    pub(crate) fn remove(&mut self, addrs: &HashSet<u64>) {
        self.0.retain(|patch| !addrs.contains(&patch.addr.0));
    }
    /// Notes patches that are published now, in place of those that were there before.
    pub(crate) fn add(&mut self, patches: impl Iterator<Item = Patch>) {
        let mut fresh: Vec<Patch> = patches.collect();
        fresh.sort_unstable_by_key(|p| p.addr);
        // Inserted one by one, if they are few.
        if fresh.len() < 16 {
            for patch in fresh {
                let (start, end) = patch.needs();
                let from = self.0.partition_point(|old| old.needs().1 <= start);
                let to = from + self.0[from..].partition_point(|old| old.addr < end);
                self.0.splice(from..to, [patch]);
            }
            return;
        }
        self.0.retain(|old| conflict(&fresh, old).is_none());
        // The shorter list is inserted into the longer one.
        if fresh.len() > self.0.len() {
            std::mem::swap(&mut self.0, &mut fresh);
        }
        let (Some(first), Some(last)) = (fresh.first(), fresh.last()) else { return };
        let (first, last) = (first.addr, last.addr);
        // Mostly the patches of one module lie between those of others.
        let at = self.0.partition_point(|old| old.addr < first);
        if self.0.get(at).is_none_or(|next| last < next.addr) {
            self.0.splice(at..at, fresh);
            return;
        }
        self.0.append(&mut fresh);
        self.0.sort_unstable_by_key(|p| p.addr);
    }
}

/// The patch among `held` (sorted, disjoint) that needs bytes which `patch` needs too.
pub(crate) fn conflict<'a>(held: &'a [Patch], patch: &Patch) -> Option<&'a Patch> {
    let (start, end) = patch.needs();
    let before = held.partition_point(|h| h.addr < end);
    held[..before].last().filter(|last| last.needs().1 > start)
}

#[cfg(test)]
mod tests {
    use super::{Held, conflict};
    use trapline_plan::{Patch, PatchRole, Tactic};
    use trapline_record::RemoteAddr;

    fn patch(addr: u64, len: u8, relies: u8) -> Patch {
        Patch {
            probe: 0,
            request: 0,
            role: PatchRole::Entry,
            tactic: Tactic::Pun,
            addr: RemoteAddr(addr),
            len,
            relies,
            old: [0; 8],
            new: [0; 8],
            head: RemoteAddr(0),
            crosses_line: false,
            starts: 0,
            faults: false,
            faults_before: false,
        }
    }

    fn is_latest(held: &Held, at: u64, head: u64) -> bool {
        held.at(RemoteAddr(at)).is_some_and(|patch| patch.head.0 == head)
    }

    #[test]
    fn a_displaced_patch_is_not_held() {
        let mut held = Held::default();
        held.add([patch(0x100, 2, 5), patch(0x200, 5, 5)].into_iter());
        let holds = |held: &Held, at: u64| {
            let head = patch(at, 5, 5).head;
            is_latest(held, at, head.0)
        };
        assert!(holds(&held, 0x100) && holds(&held, 0x200) && !holds(&held, 0x104));
        held.add([patch(0x104, 5, 5)].into_iter());
        assert!(!holds(&held, 0x100) && holds(&held, 0x104), "it ended in bytes that are another's now");
        assert!(!is_latest(&held, 0x200, 1), "another stub");
    }
    /// Few, or many, among fewer or more, before, between or behind them; some in the place of others.
    #[test]
    fn as_many_as_came_are_held_in_order() {
        let batches: [&[u64]; 6] = [&[7, 900], &[100, 101, 102], &[50], &[99, 5000, 6000], &[103, 104], &[]];
        for first in batches {
            for (from, step) in [(8, 2), (100, 1), (901, 3), (1, 450)] {
                let second: Vec<u64> = (0..20).map(|n| from + n * step).collect();
                for (one, other) in [(first, second.as_slice()), (&second, first)] {
                    let mut held = Held::default();
                    held.add(one.iter().map(|n| patch(n * 8, 5, 5)));
                    // The later ones reach into what lies before them.
                    held.add(other.iter().map(|n| patch(n * 8 - 4, 8, 8)));
                    let gone = |n: &u64| other.iter().any(|m| m * 8 - 4 < n * 8 + 5 && n * 8 < m * 8 + 4);
                    let mut wanted: Vec<u64> = one.iter().filter(|n| !gone(n)).map(|n| n * 8).collect();
                    wanted.extend(other.iter().map(|n| n * 8 - 4));
                    wanted.sort_unstable();
                    let found: Vec<u64> = held.all().iter().map(|patch| patch.addr.0).collect();
                    assert_eq!(found, wanted);
                }
            }
        }
    }
    #[test]
    fn what_a_pun_ends_in_is_held() {
        let mut held = Held::default();
        held.add([patch(0x100, 2, 5), patch(0x200, 5, 5)].into_iter());
        let meets = |at: u64| conflict(held.all(), &patch(at, 5, 5)).map(|p| p.addr.0);
        assert_eq!(meets(0x104), Some(0x100), "the pun's tail");
        assert_eq!(meets(0x105), None);
        assert_eq!(meets(0xfc), Some(0x100));
        assert_eq!(meets(0x1fb), None);
        assert_eq!(meets(0x204), Some(0x200));
    }

    #[test]
    fn a_new_patch_takes_the_place_of_one_that_went_with_its_library() {
        let mut held = Held::default();
        held.add([patch(0x100, 5, 5), patch(0x200, 5, 5)].into_iter());
        held.add([patch(0x103, 5, 5)].into_iter());
        let addrs: Vec<u64> = held.all().iter().map(|p| p.addr.0).collect();
        assert_eq!(addrs, [0x103, 0x200]);
    }
}
