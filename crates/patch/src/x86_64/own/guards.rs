//! The guard tables of segments to which batch after batch is added.
//!
//! In: segments, guards of sites that are about to be written. Out: tables that lead to where the present patch
//! leads (see [`protocol`](super::protocol), "One address, several guards" and H2). Invariants: code that reads a
//! table finds it whole and sorted at any moment, also if we end in between.
//! Does not: write sites.

use trapline_plan::{DataCounts, ModulePlan, Tactic};
use trapline_record::control::at;
use trapline_record::journal::Entry;
use trapline_runtime::x86_64::Windows;

use super::site::OwnSite;
use crate::error::PatchError;
use crate::memory::segment::Segment;

/// Each segment has room for two tables, of which one is in use.
#[derive(Debug, Default)]
pub(super) struct GuardTables {
    /// For each segment, by its index: from which entry on the table that is not in use is out of date. Those that
    /// are not listed: from the first on.
    stale: Vec<usize>,
}

impl GuardTables {
    /// Makes all guards for an address lead to the same place: where the present patch leads, not an earlier
    /// one.
    pub(super) fn lead(&mut self, segments: &mut [Segment], addr: u64, resume: u64) {
        for (nth, segment) in segments.iter_mut().enumerate() {
            let Ok(index) = segment.guards.binary_search_by_key(&addr, |guard| guard.0) else { continue };
            segment.guards[index].1 = resume;
            if let Some(stale) = self.stale.get_mut(nth) {
                *stale = index.min(*stale);
            }
            let table = segment.view().get(at::GUARD_OFF);
            segment.view().set(table + index as u64 * 16 + 8, resume);
        }
    }
    /// The same for a batch's guards, which are sorted. Most batches lie where none was before.
    pub(super) fn lead_all(&mut self, segments: &mut [Segment], guards: &[(u64, u64)]) {
        let (Some(first), Some(last)) = (guards.first(), guards.last()) else { return };
        let meets = |segment: &Segment| {
            let at = segment.guards.partition_point(|guard| guard.0 < first.0);
            segment.guards.get(at).is_some_and(|guard| guard.0 <= last.0)
        };
        if segments.iter().any(meets) {
            guards.iter().for_each(|&(addr, resume)| self.lead(segments, addr, resume));
        }
    }
    /// Adds code, guards and sites of a further batch to the segment of this index (H1 to H3). In the
    /// old table, numbers behind its end become the highest possible; the count is raised; the new table is
    /// written separately; one word switches to it.
    pub(super) fn append(
        &mut self,
        segments: &mut [Segment],
        nth: usize,
        plans: &[ModulePlan],
        entries: &[Entry],
        guards: &[(u64, u64)],
    ) -> Result<(), PatchError> {
        let segment = &mut segments[nth];
        segment.write_chunks(plans)?;
        let from = merge(&mut segment.guards, guards);
        if self.stale.len() <= nth {
            self.stale.resize(nth + 1, 0);
        }
        let stale = std::mem::replace(&mut self.stale[nth], from).min(from);
        let (count, half) = (segment.guards.len() as u64, u64::from(segment.layout.guard_cap / 2));
        if count > half {
            return Err(PatchError::Layout { what: "the guard table", at: count, len: half });
        }
        let (view, base) = (segment.view(), segment.layout.guard_off);
        let (first, second) = (base, base + half * 16);
        let (old, new) = if view.get(at::GUARD_OFF) == first { (first, second) } else { (second, first) };
        for n in view.get(at::GUARD_COUNT)..count {
            view.set(old + n * 16, u64::MAX);
        }
        view.set(at::GUARD_COUNT, count);
        for (n, (addr, resume)) in (0..).zip(&segment.guards).skip(stale) {
            view.set(new + n * 16, *addr);
            view.set(new + n * 16 + 8, *resume);
        }
        view.set(at::GUARD_OFF, new);
        let known = segment.entries.len() as u64;
        for (n, entry) in (known..).zip(entries) {
            segment.journal().put(n, entry);
        }
        view.set(at::JOURNAL_COUNT, known + entries.len() as u64);
        segment.entries.extend_from_slice(entries);
        Ok(())
    }
}

/// Adds guards to a sorted table, in place of those with the same address. Returns the first index that changed.
fn merge(all: &mut Vec<(u64, u64)>, guards: &[(u64, u64)]) -> usize {
    let mut from = all.len();
    for guard in guards {
        let index = match all.binary_search_by_key(&guard.0, |known| known.0) {
            Ok(index) => {
                all[index] = *guard;
                index
            }
            Err(index) => {
                all.insert(index, *guard);
                index
            }
        };
        from = from.min(index);
    }
    from
}

/// Whether a batch of at most these counts finds room in a segment behind what is there. Half of the guard table is
/// kept for the next one ([`GuardTables::append`]).
pub(super) fn has_room(segment: &Segment, counts: &DataCounts) -> bool {
    let guards = segment.guards.len() as u64 + u64::from(counts.guards + counts.patches);
    let entries = segment.entries.len() as u64 + u64::from(counts.patches);
    guards <= u64::from(segment.layout.guard_cap / 2) && entries <= u64::from(segment.layout.journal_cap)
}

/// Sets the guards of a window that is put back in the handler's table: others may have been patched there
/// meanwhile.
pub(super) fn lead_inside(segments: &[Segment], windows: &Windows, site: &OwnSite) {
    let guards = segments.get(site.segment as usize).map_or(&[][..], |segment| &segment.guards);
    let (start, end) = site.bounds();
    let inside = guards.iter().skip(guards.partition_point(|g| g.0 < start)).take_while(|g| g.0 < end);
    let is_own_trap = |addr| site.tactic == Tactic::Trap && addr == start;
    inside.filter(|g| !is_own_trap(g.0)).for_each(|&(addr, resume)| windows.lead(addr, resume));
}

#[cfg(test)]
mod tests {
    use super::merge;

    #[test]
    fn guards_of_a_further_batch_come_in_order_and_replace_those_of_the_same_address() {
        let mut all = vec![(10, 1), (20, 2), (30, 3)];
        assert_eq!(merge(&mut all, &[(40, 4)]), 3);
        assert_eq!(merge(&mut all, &[(20, 5), (25, 6)]), 1);
        assert_eq!(all, [(10, 1), (20, 5), (25, 6), (30, 3), (40, 4)]);
        assert_eq!(merge(&mut all, &[]), 5);
    }
}
