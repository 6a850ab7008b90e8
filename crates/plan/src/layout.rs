//! Where the parts of a segment's data lie, computed from how many there are of each.
//!
//! In: upper bounds. Out: byte offsets. Memory is sparse, so a generous bound costs nothing. What grows with
//! functions times CPUs times more than a word is *far*: code reaches it by a whole address, so it is mapped
//! once, anywhere. The rest is *near*: each module maps it within reach of its code.

use trapline_record::control::{CONTROL_LEN, MAX_REGIONS, REGION_LEN};
use trapline_record::counters::{CounterArea, LINE, filtered};
use trapline_record::maps::{MapArea, MapBytes, StackTable, TextTable};
use trapline_record::names::{self, NameArea};
use trapline_record::pages::PageArea;
use trapline_record::ring::RingArea;
use trapline_record::tally::{TableShape, TallyArea};
use trapline_record::threads::ThreadArea;
use trapline_record::{RemoteAddr, journal, latency};

const PAGE: u64 = 4096;
/// Number of regions for which every segment has room, whatever its modules need.
const LEAST_REGIONS: u32 = 16;
/// Upper bound of a module's regions: data, code, and small ones for punned jumps or islands.
pub const MODULE_REGIONS: u32 = 2 + SMALL_REGIONS;
/// Upper bound of a module's small regions. Two planners share them.
pub const SMALL_REGIONS: u32 = 512;

/// How many of each part a segment needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataCounts {
    /// Journal entries at most (patches, islands, semaphores).
    pub patches: u32,
    /// Guard table entries at most.
    pub guards: u32,
    /// Number of counters.
    pub counters: u32,
    /// Number of latency areas (timed functions).
    pub latency: u32,
    /// Lines per counter group and per latency area.
    pub lines: u32,
    /// Hits are counted by thread.
    pub by_thread: bool,
    /// Bytes of a ring slot, 0 if nothing is recorded; see [`RingArea::slot_for`].
    pub slot: u32,
    /// Upper bound of a record's bytes. A record takes several slots if it holds a stack. Either all records
    /// of a process do, or none.
    pub most: u32,
    /// Bytes of each CPU's ring if something is recorded; a power of two.
    pub ring: u32,
    /// Records hold texts.
    pub texts: bool,
    /// Threads have no rseq areas, so records are written to rings that are locked ([`RingArea::shared`]).
    pub locked: bool,
    /// Some hits are filtered.
    pub filtered: bool,
    /// Shape of the largest table of values that a counter has.
    pub tally: TableShape,
    /// Bytes of a script's maps; none if they are elsewhere.
    pub maps: MapBytes,
    /// Stacks that keys of these maps name.
    pub stacks: StackTable,
    /// Texts that keys of these maps name.
    pub keyed_texts: TextTable,
    /// Some filter depends on thread names.
    pub named: bool,
    /// Number of regions of all modules.
    pub regions: u32,
}

impl DataCounts {
    /// Adds what another module needs; `lines`, `by_thread`, `ring`, `locked`, `filtered`, `tally`, `maps`, `stacks`,
    /// `keyed_texts` and `named` stay as they are.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            patches: self.patches + other.patches,
            guards: self.guards + other.guards,
            counters: self.counters + other.counters,
            latency: self.latency + other.latency,
            lines: self.lines,
            by_thread: self.by_thread,
            slot: if self.slot > other.slot { self.slot } else { other.slot },
            most: if self.most > other.most { self.most } else { other.most },
            ring: self.ring,
            texts: self.texts | other.texts,
            locked: self.locked,
            filtered: self.filtered,
            tally: self.tally,
            maps: self.maps,
            stacks: self.stacks,
            keyed_texts: self.keyed_texts,
            named: self.named,
            regions: self.regions + other.regions,
        }
    }
}

/// Byte offsets in a segment, as stated in the control block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataLayout {
    /// Bytes of the whole data part; whole pages. Code regions follow.
    pub len: u64,
    /// Bytes of the near part, which comes first; whole pages.
    pub near: u64,
    /// Offset of the list of regions.
    pub regions_off: u64,
    /// Number of regions that fit.
    pub regions_cap: u32,
    /// Offset of the journal.
    pub journal_off: u64,
    /// Number of journal entries that fit.
    pub journal_cap: u32,
    /// Offset of the guard table: pairs of words (address, resume), sorted.
    pub guard_off: u64,
    /// Number of pairs that fit.
    pub guard_cap: u32,
    /// Counters.
    pub counters: CounterArea,
    /// Offset of the latency areas, [`latency::STRIDE`] bytes to a line.
    pub latency_off: u64,
    /// Number of latency areas.
    pub latency_count: u32,
    /// Counters by thread. If it has rows, stubs count there instead of by CPU.
    pub threads: ThreadArea,
    /// Rings of records; empty when nothing is recorded.
    pub rings: RingArea,
    /// Tables of pages that texts may be loaded from; empty if no record holds texts.
    pub pages: PageArea,
    /// Words for each counter if hits are filtered: [`filtered`].
    pub filtered: CounterArea,
    /// Tables of values, one for each counter; empty if nothing is aggregated.
    pub tallies: TallyArea,
    /// A script's maps; empty if there are none.
    pub maps: MapArea,
    /// The pass-over table: threads with names that a filter excludes. Empty if no filter
    /// depends on names.
    pub names: NameArea,
}

impl DataLayout {
    /// Lays out the parts one after another.
    #[must_use]
    pub const fn new(counts: &DataCounts) -> Self {
        let journal_off = CONTROL_LEN;
        let guard_off = journal_off + counts.patches as u64 * journal::ENTRY_LEN;
        let regions_off = (guard_off + counts.guards as u64 * 16).next_multiple_of(LINE);
        let regions = LEAST_REGIONS as u64 + counts.regions as u64;
        let regions_cap = if regions < MAX_REGIONS { regions as u32 } else { MAX_REGIONS as u32 };
        let counters = CounterArea {
            off: (regions_off + regions_cap as u64 * REGION_LEN).next_multiple_of(LINE),
            count: counts.counters,
            lines: counts.lines,
        };
        let words = CounterArea {
            off: (counters.off + counters.len()).next_multiple_of(LINE),
            count: if counts.filtered { filtered::WORDS * counts.counters } else { 0 },
            lines: counts.lines,
        };
        let cpus = counts.lines.saturating_sub(1);
        let end = (words.off + words.len()).next_multiple_of(PAGE);
        let pages = PageArea { off: end, tables: if counts.texts { cpus } else { 0 } };
        let places = if counts.named { names::PLACES } else { 0 };
        let names = NameArea { off: (pages.off + pages.len()).next_multiple_of(PAGE), places };
        let near = (names.off + names.len()).next_multiple_of(PAGE);

        let latency_off = near;
        let threads = ThreadArea {
            off: latency_off + counts.latency as u64 * counts.lines as u64 * latency::STRIDE,
            rows: if counts.by_thread { ThreadArea::rows_for(counts.counters) } else { 0 },
            counters: counts.counters,
        };
        let tallies_off = (threads.off + threads.len()).next_multiple_of(LINE);
        let tallies = TallyArea::new(tallies_off, counts.counters, counts.lines, counts.tally);
        let (lines, stacks, texts) = (counts.lines, counts.stacks, counts.keyed_texts);
        let maps = MapArea { off: tallies.off + tallies.len(), lines, bytes: counts.maps, stacks, texts };
        let rings = rings(counts, (maps.off + maps.len()).next_multiple_of(PAGE));
        Self {
            len: (rings.off + if rings.is_empty() { 0 } else { rings.len() }).next_multiple_of(PAGE),
            near,
            regions_off,
            regions_cap,
            journal_off,
            journal_cap: counts.patches,
            guard_off,
            guard_cap: counts.guards,
            counters,
            latency_off,
            latency_count: counts.latency,
            threads,
            rings,
            pages,
            filtered: words,
            tallies,
            maps,
            names,
        }
    }
    /// Bytes of the far part.
    #[must_use]
    pub const fn far(&self) -> u64 {
        self.len - self.near
    }
    /// Where code finds the data if the near and far parts are mapped at these addresses.
    #[must_use]
    pub const fn mapped(&self, near: RemoteAddr, far: RemoteAddr) -> DataAt {
        DataAt { near, far, split: self.near }
    }
    /// Byte offset of function `index`'s latency area on line 0. Line `l` is `l · STRIDE` further.
    #[must_use]
    pub const fn latency(&self, index: u32) -> u64 {
        self.latency_off + index as u64 * self.counters.lines as u64 * latency::STRIDE
    }
}

/// Where the parts of a segment's data are mapped, for the code of one module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataAt {
    near: RemoteAddr,
    far: RemoteAddr,
    split: u64,
}

impl DataAt {
    /// Live address of the byte at an offset in the segment.
    #[must_use]
    pub const fn of(self, off: u64) -> u64 {
        if off < self.split { self.near.0 + off } else { self.far.0 + (off - self.split) }
    }
}

/// The rings, which begin at an offset.
const fn rings(counts: &DataCounts, off: u64) -> RingArea {
    let cpus = counts.lines.saturating_sub(1);
    let (rings, bytes) = match counts.locked {
        _ if counts.slot == 0 => (0, counts.ring),
        // There is room for one record at least.
        false if counts.ring < counts.most => (cpus, counts.most),
        false => (cpus, counts.ring),
        // There are two rings for each CPU, so each has half the bytes.
        true if counts.ring / 2 >= counts.most => (RingArea::shared(cpus), counts.ring / 2),
        true => (RingArea::shared(cpus), counts.most),
    };
    RingArea { off, rings, slot: counts.slot, most: counts.most, bytes }
}

#[cfg(test)]
mod tests {
    use super::{DataCounts, DataLayout};
    use trapline_record::RemoteAddr;

    #[test]
    fn what_is_large_is_far_and_what_code_names_by_distance_is_near() {
        let large = DataCounts {
            patches: 200_000,
            guards: 200_000,
            counters: 77_000,
            latency: 77_000,
            lines: 65,
            slot: 64,
            most: 64,
            ring: 4 << 20,
            texts: true,
            filtered: true,
            named: true,
            ..DataCounts::default()
        };
        let layout = DataLayout::new(&large);
        assert!(layout.near < 256 << 20, "{:#x}", layout.near);
        assert!(layout.far() > 8 << 30, "{:#x}", layout.far());
        for off in [layout.latency_off, layout.threads.off, layout.tallies.off, layout.rings.off] {
            assert!(off >= layout.near);
        }
        let ends = [
            layout.counters.off + layout.counters.len(),
            layout.filtered.off + layout.filtered.len(),
            layout.pages.off + layout.pages.len(),
            layout.names.off + layout.names.len(),
        ];
        assert!(ends.iter().all(|end| *end <= layout.near));
        let at = layout.mapped(RemoteAddr(0x10_0000), RemoteAddr(1 << 40));
        assert_eq!(at.of(layout.near - 8), 0x10_0000 + layout.near - 8);
        assert_eq!(at.of(layout.latency_off), 1 << 40);
    }
}
