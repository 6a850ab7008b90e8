//! A segment as its maker holds it: the shared memory, filled, and what lies where in the target.
//!
//! In: plans. Out: control block, guard table, journal and code, written through the tracer's own mapping
//! before anything in the target leads there (PATCH-4); a list of mappings for the target to make.
//! Does not: run anything in the target.

use std::ops::Range;

use trapline_plan::{DataLayout, ModulePlan, Region};
use trapline_record::control::{MAGIC, REGION_LEN, RegionKind, State, VERSION, at};
use trapline_record::counters::CounterArea;
use trapline_record::journal::{Entry, Journal};
use trapline_record::maps::MapArea;
use trapline_record::ring::RingArea;
use trapline_record::tally::TallyArea;
use trapline_record::threads::ThreadArea;
use trapline_record::trampolines::Trampolines;
use trapline_record::view::View;
use trapline_record::{RemoteAddr, journal, latency};
use trapline_tracee::{FileId, SharedMap};

use crate::both::{MANY, both};
use crate::error::PatchError;

/// A mapping to be made in the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MappedRegion {
    pub(crate) region: Region,
    /// Byte offset in the memfd; meaningless for stamps.
    pub(crate) off: u64,
    pub(crate) kind: RegionKind,
}

/// One batch's memory in one process.
#[derive(Debug)]
pub struct Segment {
    pub(crate) map: SharedMap,
    pub(crate) layout: DataLayout,
    /// Address of the control block in the target.
    pub(crate) control: RemoteAddr,
    pub(crate) regions: Vec<MappedRegion>,
    /// Sites and semaphores, as in the journal.
    pub(crate) entries: Vec<Entry>,
    /// Pairs: an address that traps, and where its thread goes on; sorted.
    pub(crate) guards: Vec<(u64, u64)>,
    /// Pairs of `record::control::delivery`, which follow the guards in their table; sorted.
    deliveries: Vec<(u64, u64)>,
    /// Return trampolines that it brought.
    pub(crate) trampolines: Option<MadeTrampolines>,
    /// Number of bytes that were allocated before the first site was written, so they are charged to us.
    pub(crate) paid: u64,
}

/// Return trampolines, and what belongs to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MadeTrampolines {
    pub(crate) trampolines: Trampolines,
    /// The code that they share: first address, and first address behind it.
    pub(crate) shared: (u64, u64),
    /// Address of their unwind information.
    pub(crate) unwind: u64,
}

impl Segment {
    /// The segment's words, for counters and latency areas; readable after the process has ended.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        self.map.view()
    }
    /// Area of its counters.
    #[must_use]
    pub const fn counters(&self) -> CounterArea {
        self.layout.counters
    }
    /// Area of its counters by thread; empty if it counts by CPU.
    #[must_use]
    pub const fn threads(&self) -> ThreadArea {
        self.layout.threads
    }
    /// Area of its rings of records; empty if it records nothing.
    #[must_use]
    pub const fn rings(&self) -> RingArea {
        self.layout.rings
    }
    /// Area of the words of its filters (`record::counters::filtered`); empty if nothing is filtered.
    #[must_use]
    pub const fn filtered(&self) -> CounterArea {
        self.layout.filtered
    }
    /// Area of its tables of values; empty if it aggregates nothing.
    #[must_use]
    pub const fn tallies(&self) -> TallyArea {
        self.layout.tallies
    }
    /// Area of a script's maps; empty if it has none.
    #[must_use]
    pub const fn maps(&self) -> MapArea {
        self.layout.maps
    }
    /// Layout of the whole segment.
    #[must_use]
    pub const fn layout(&self) -> &DataLayout {
        &self.layout
    }
    /// Ranges of the latency areas that were written to, in order, as byte offsets.
    #[must_use]
    pub fn timed(&self) -> Vec<Range<u64>> {
        let functions = u64::from(self.layout.latency_count) * u64::from(self.layout.counters.lines);
        self.map.written(self.layout.latency_off, functions * latency::STRIDE)
    }
    /// Ranges of the maps' area that were written to, in order, as byte offsets.
    #[must_use]
    pub fn mapped_entries(&self) -> Vec<Range<u64>> {
        self.map.written(self.layout.maps.off, self.layout.maps.len())
    }
    /// Its memfd.
    #[must_use]
    pub const fn memfd(&self) -> FileId {
        self.map.id()
    }
    /// Number of guard traps that the handler in the process served.
    #[must_use]
    pub fn guard_hits(&self) -> u64 {
        self.view().get(at::GUARD_HITS)
    }
    /// Number of entries that found no room for a stamp.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.view().get(at::MISSED)
    }
    /// Number of bytes of memory that it occupies.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.map.resident()
    }
    /// Allocates parts of it at our expense (`plan::charge`).
    pub(crate) fn pay(&self, parts: &[(u64, u64)]) -> Result<(), PatchError> {
        parts.iter().try_for_each(|(from, to)| Ok(self.map.pay(*from, to - from)?))
    }
    /// Gives counters and latency areas back to the system; they read as zero afterwards. Call it after the
    /// last read.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn forget(&self) -> Result<(), PatchError> {
        let from = self.layout.counters.off.next_multiple_of(4096);
        Ok(self.map.punch(from, self.layout.len.saturating_sub(from))?)
    }
    /// Forgets private memory of this kind in the control block, before it is unmapped. If the tracer dies in
    /// between, the memory stays mapped; it is never unmapped twice.
    pub(crate) fn disown(&self, kind: RegionKind) {
        match kind {
            RegionKind::Stamps => {
                self.view().set(at::STAMPS_LEN, 0);
            }
            RegionKind::Trampolines => {
                self.view().set(at::TRAMPOLINES_COUNT, 0);
            }
            RegionKind::Own => {
                self.view().set(at::OWN_PAGE, 0);
            }
            RegionKind::Code | RegionKind::Data => {}
        }
    }
    /// Address of its control block in the target.
    #[must_use]
    pub const fn address(&self) -> RemoteAddr {
        self.control
    }
    /// Address in the target of the page that each process has for itself, if there is one
    /// ([`trapline_record::sharers`]).
    #[must_use]
    pub fn own_page(&self) -> Option<RemoteAddr> {
        self.regions.iter().find(|r| r.kind == RegionKind::Own).map(|r| r.region.addr)
    }
    /// Has the guard at this address, if there is one, lead elsewhere.
    pub(crate) fn redirect_guard(&mut self, addr: u64, to: u64) {
        if let Ok(nth) = self.guards.binary_search_by_key(&addr, |guard| guard.0) {
            self.guards[nth].1 = to;
            self.view().set(self.layout.guard_off + nth as u64 * 16 + 8, to);
        }
    }
    /// Where a thread that trapped at `addr` goes on.
    #[must_use]
    pub fn resume(&self, addr: u64) -> Option<u64> {
        resume(&self.guards, addr)
    }
    /// The function with its latency area at this address of the process; entries of return trampolines name
    /// it so.
    #[must_use]
    pub fn function_of(&self, what: u64) -> Option<u32> {
        let mapped = self
            .regions
            .iter()
            .find(|r| r.kind == RegionKind::Data && r.region.contains(RemoteAddr(what)))?;
        let off = (what - mapped.region.addr.0 + mapped.off).checked_sub(self.layout.latency_off)?;
        let index = off / (u64::from(self.layout.counters.lines) * latency::STRIDE);
        u32::try_from(index).ok().filter(|&index| index < self.layout.latency_count)
    }
    /// Counts a call that was left without a return, while no thread runs.
    pub(crate) fn count_unreturned(&self, what: u64) {
        if let Some(function) = self.function_of(what) {
            let last = u64::from(self.layout.counters.lines).saturating_sub(1) * latency::STRIDE;
            let at = self.layout.latency(function) + last + latency::at::UNRETURNED;
            self.view().set(at, self.view().get(at) + 1);
        }
    }
    /// Whether an address lies in its code.
    pub(crate) fn is_code(&self, at: u64) -> bool {
        self.regions.iter().any(|r| r.kind == RegionKind::Code && r.region.contains(RemoteAddr(at)))
    }
    /// Facts for which no thread waits (`hold`).
    pub(crate) fn closed(&self) -> u64 {
        self.view().get(at::CLOSED)
    }
    pub(crate) fn set_state(&self, state: State) {
        self.view().set(at::STATE, state as u64);
    }
    pub(crate) fn journal(&self) -> Journal<'_> {
        Journal::new(self.view(), self.layout.journal_off)
    }
    /// Number of bytes of journal and guard table in use.
    pub(crate) fn tables(&self) -> u64 {
        let guards = self.guards.len() + self.deliveries.len();
        self.entries.len() as u64 * journal::ENTRY_LEN + guards as u64 * 16
    }
    /// Number of bytes of counters, latency areas and rings that one CPU writes.
    pub(crate) fn per_cpu(&self) -> u64 {
        let counters = self.layout.counters;
        let latency = u64::from(self.layout.latency_count) * latency::STRIDE;
        let rings = self.layout.rings;
        let ring = rings.len() / u64::from(counters.lines.saturating_sub(1).max(1));
        let tallies = self.layout.tallies.len() / u64::from(counters.lines.max(1));
        let maps = u64::from(self.layout.maps.bytes.line);
        counters.len() / u64::from(counters.lines.max(1)) + latency + ring + tallies + maps
    }
    pub(crate) fn mapped(&self) -> u64 {
        self.regions.iter().map(|r| r.region.len).sum()
    }
}

/// What a segment will hold.
pub(crate) struct Contents {
    pub(crate) pid: u32,
    pub(crate) control: RemoteAddr,
    pub(crate) regions: Vec<MappedRegion>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) guards: Vec<(u64, u64)>,
    pub(crate) deliveries: Vec<(u64, u64)>,
    pub(crate) trampolines: Option<MadeTrampolines>,
}

impl Segment {
    /// Writes the control block, in state Building, with empty tables. That is enough for the trap handler to
    /// run and for a later tracer to find everything.
    pub(crate) fn begin(map: SharedMap, layout: DataLayout, contents: Contents) -> Result<Self, PatchError> {
        let Contents { pid, control, regions, entries, guards, deliveries, trampolines } = contents;
        let segment =
            Self { map, layout, control, regions, entries, guards, deliveries, trampolines, paid: 0 };
        segment.write_control(pid);
        segment.write_trampolines();
        segment.write_regions()?;
        segment.view().set(at::MAGIC, MAGIC);
        Ok(segment)
    }
    /// Writes code, guard table and journal: on this thread alone if `alone`, or if they are few. It is new
    /// memory, and the kernel has to clear each page.
    pub(crate) fn fill(&self, plans: &[ModulePlan], alone: bool) -> Result<(), PatchError> {
        if alone || self.entries.len() < MANY {
            return self.write_chunks(plans).and_then(|()| self.write_tables());
        }
        let all: usize = plans.iter().map(|plan| plan.chunks.len()).sum();
        // The tables take as long as a quarter of the code.
        let (mine, its) = (0..all * 5 / 8, all * 5 / 8..all);
        let write_rest = || self.write_tables().and_then(|()| self.write_some(plans, its.clone()));
        let (code, tables) = both(|| self.write_some(plans, mine), write_rest);
        code.and(tables)
    }
    pub(crate) fn write_chunks(&self, plans: &[ModulePlan]) -> Result<(), PatchError> {
        self.write_some(plans, 0..usize::MAX)
    }
    /// Writes some of all chunks, by their numbers.
    fn write_some(&self, plans: &[ModulePlan], some: Range<usize>) -> Result<(), PatchError> {
        let all = plans.iter().flat_map(|plan| plan.chunks.iter().map(move |chunk| (plan, chunk)));
        let mut some = all.skip(some.start).take(some.len());
        some.try_for_each(|(plan, chunk)| self.write_code(chunk.addr, plan.chunk_bytes(chunk)))
    }
    fn write_control(&self, pid: u32) {
        let me = std::process::id();
        let (view, layout) = (self.view(), &self.layout);
        for (at, word) in [
            (at::VERSION, VERSION),
            (at::STATE, State::Building as u64),
            (at::TRACER_PID, u64::from(me)),
            (at::TRACER_START, trapline_tracee::start_time(me).unwrap_or(0)),
            (at::OWNER_PID, u64::from(pid)),
            (at::DATA_LEN, layout.len),
            (at::JOURNAL_OFF, layout.journal_off),
            (at::GUARD_OFF, layout.guard_off),
            (at::REGIONS_OFF, layout.regions_off),
            (at::COUNTER_OFF, layout.counters.off),
            (at::COUNTER_COUNT, u64::from(layout.counters.count)),
            (at::COUNTER_LINES, u64::from(layout.counters.lines)),
            (at::LATENCY_OFF, layout.latency_off),
            (at::LATENCY_COUNT, u64::from(layout.latency_count)),
            (at::LATENCY_STRIDE, latency::STRIDE),
            (at::THREADS_OFF, layout.threads.off),
            (at::THREADS_ROWS, u64::from(layout.threads.rows)),
            (at::THREADS_COUNTERS, u64::from(layout.threads.counters)),
            (at::PAGES_OFF, layout.pages.off),
            (at::PAGES_TABLES, u64::from(layout.pages.tables)),
        ] {
            view.set(at, word);
        }
    }
    fn write_trampolines(&self) {
        let Some(MadeTrampolines { trampolines, shared, unwind }) = self.trampolines else { return };
        for (at, word) in [
            (at::TRAMPOLINES_CODE, trampolines.code),
            (at::TRAMPOLINES_TABLE, trampolines.table),
            (at::TRAMPOLINES_COUNT, trampolines.count.into()),
            (at::TRAMPOLINES_SHARED, shared.0),
            (at::TRAMPOLINES_SHARED_END, shared.1),
            (at::UNWIND, unwind),
        ] {
            self.view().set(at, word);
        }
    }
    fn write_regions(&self) -> Result<(), PatchError> {
        let view = self.view();
        let count = self.regions.len() as u64;
        let cap = self.layout.regions_cap.into();
        if count > cap {
            return Err(PatchError::Layout { what: "the list of regions", at: count, len: cap });
        }
        for (n, r) in self.regions.iter().enumerate() {
            let base = self.layout.regions_off + n as u64 * REGION_LEN;
            for (m, word) in [r.region.addr.0, r.region.len, r.off, r.kind as u64].into_iter().enumerate() {
                view.set(base + m as u64 * 8, word);
            }
            if r.kind == RegionKind::Own {
                view.set(at::OWN_PAGE, r.region.addr.0);
            }
            if r.kind == RegionKind::Stamps {
                view.set(at::STAMPS_ADDR, r.region.addr.0);
                view.set(at::STAMPS_LEN, r.region.len);
            }
        }
        view.set(at::REGION_COUNT, count);
        Ok(())
    }
    /// Writes guard table and journal, each as a whole before its count.
    fn write_tables(&self) -> Result<(), PatchError> {
        let (view, layout) = (self.view(), &self.layout);
        let guards = (self.guards.len() + self.deliveries.len()) as u64;
        let entries = self.entries.len() as u64;
        if guards > u64::from(layout.guard_cap) {
            return Err(PatchError::Layout {
                what: "the guard table",
                at: guards,
                len: layout.guard_cap.into(),
            });
        }
        if entries > u64::from(layout.journal_cap) {
            return Err(PatchError::Layout {
                what: "the journal",
                at: entries,
                len: layout.journal_cap.into(),
            });
        }
        for (n, (addr, resume)) in self.guards.iter().chain(&self.deliveries).enumerate() {
            let base = layout.guard_off + n as u64 * 16;
            view.set(base, *addr);
            view.set(base + 8, *resume);
        }
        view.set(at::GUARD_COUNT, guards);
        for (n, entry) in self.entries.iter().enumerate() {
            self.journal().put(n as u64, entry);
        }
        view.set(at::JOURNAL_COUNT, entries);
        Ok(())
    }
    pub(crate) fn write_code(&self, addr: RemoteAddr, bytes: &[u8]) -> Result<(), PatchError> {
        let code = self.regions.iter().filter(|r| r.kind == RegionKind::Code);
        let len = self.map.len();
        let mapped = code.into_iter().find(|r| r.region.contains(addr));
        let off = mapped.map(|r| r.off + (addr - r.region.addr));
        match off {
            Some(off) if self.map.write(off, bytes) => Ok(()),
            _ => Err(PatchError::Layout { what: "code", at: off.unwrap_or(addr.0), len }),
        }
    }
}

/// Looks an address up in a sorted guard table.
pub(crate) fn resume(guards: &[(u64, u64)], addr: u64) -> Option<u64> {
    let found = guards.binary_search_by_key(&addr, |guard| guard.0).ok()?;
    Some(guards[found].1)
}
