//! The code of the actions at a word.
//!
//! In: an action, where counters, areas and rings lie. Out: the stub before the displaced code, and what appends
//! the rest. Does not: choose words or places.

use trapline_record::counters::filtered;
use trapline_record::ring::{RecordKind, RingArea};
use trapline_record::{RemoteAddr, control};

use super::action::{Record, SiteAction};
use super::stub::{
    self, ARGUMENTS, Code, Filtered, Latency, Machine, Rings, TableLocation, Tallied, Threads, Timed, Traced,
};
use crate::filter::TargetFilter;
use crate::layout::{DataAt, DataLayout};
use crate::machine::{Stacks, ThreadId};
use crate::request::{LatencyInput, Read, Unwind};

/// What all stubs of a segment share.
pub(super) struct Setting<'a> {
    pub(super) machine: Machine,
    pub(super) layout: &'a DataLayout,
    pub(super) data: DataAt,
    pub(super) latency: Option<Latency>,
    /// Where records go, if records are requested.
    pub(super) rings: Option<Rings>,
    /// By probe: the filter that decides which hits count, and how they are aggregated.
    pub(super) filters: &'a [Option<TargetFilter>],
    /// How a thread's number is read.
    pub(super) id: ThreadId,
    /// Describes what entries keep for returns that aggregate: it is as large as a stamp cell, and there is
    /// no ring.
    pub(super) places: Rings,
}

impl<'a> Setting<'a> {
    pub(super) fn new(
        machine: Machine,
        (layout, data): (&'a DataLayout, DataAt),
        input: Option<LatencyInput>,
        (filters, id): (&'a [Option<TargetFilter>], ThreadId),
    ) -> Self {
        let latency = input.map(|input| Latency {
            area: data.of(layout.latency_off),
            functions: layout.latency_count,
            stamps: input.stamps.0,
            shape: input.shape,
            missed: data.of(control::at::MISSED),
            min_ticks: input.min_ticks,
            buckets: input.buckets,
            outermost: input.outermost,
            trampolines: input.trampolines,
        });
        let slot = latency.map_or(0, |latency| 1 << latency.shape.cell_bits());
        let area = RingArea { slot, most: slot, ..layout.rings };
        let places = Rings { area, base: 0, id, stacks: Stacks::default() };
        Self { machine, layout, data, latency, rings: None, filters, id, places }
    }
    /// The filter of a probe, with the words in which its rejected hits are counted.
    fn filtered(&self, probe: u32) -> Option<Filtered<'a>> {
        let filter = self.filters.get(probe as usize)?.as_ref()?;
        let words = self.data.of(self.layout.filtered.word(filtered::WORDS * probe));
        let names = self.layout.names;
        let names = (filter.by_name && !names.is_empty()).then_some(self.data.of(names.off));
        Some(Filtered { filter, words, names })
    }
    /// Where hits are counted by thread, if they are.
    fn threads(&self) -> Option<Threads> {
        let area = self.layout.threads;
        (!area.is_empty()).then(|| Threads { area, tags: self.data.of(area.off), id: self.id })
    }
    /// What is read from memory for a probe.
    fn reads(&self, probe: u32) -> &'a [Read] {
        let filter = self.filters.get(probe as usize).and_then(Option::as_ref);
        filter.map_or(&[], |filter| &filter.reads)
    }
    /// What calls of a probe keep, and how they are aggregated when they return.
    fn aggregated(&self, probe: u32, goroutine: bool) -> Option<(Traced<'_>, Tallied<'a>)> {
        let (filtered, tallied) = (self.filtered(probe)?, self.tallied(probe)?);
        let traced = Traced {
            machine: &self.machine,
            rings: &self.places,
            probe,
            dropped: self.data.of(self.layout.counters.word(probe)),
            filter: Some(filtered),
            marks: Some(self.latency?.for_deferred()),
            texts: tallied.tally.texts(),
            floats: filtered.filter.left_floats(),
            fields: tallied.reads,
            unwind: Unwind::None,
            at_entry: true,
            goroutine,
        };
        Some((traced, tallied))
    }
    /// How a probe's hits are aggregated.
    fn tallied(&self, probe: u32) -> Option<Tallied<'a>> {
        let filter = self.filters.get(probe as usize)?.as_ref()?;
        let area = self.layout.tallies;
        let table = TableLocation { area, base: self.data.of(area.table(probe)) };
        Some(Tallied { tally: filter.tally.as_ref()?, table, reads: &filter.reads })
    }
    fn traced(&self, record: Record) -> Option<Traced<'_>> {
        let Record { probe, texts, floats, unwind, at_entry, nodes, returns, goroutine, .. } = record;
        let filter = if nodes.is_some() { Some(self.filtered(probe)?) } else { None };
        Some(Traced {
            machine: &self.machine,
            rings: self.rings.as_ref()?,
            probe,
            dropped: self.data.of(self.layout.counters.word(probe)),
            filter,
            marks: if returns && filter.is_some() { Some(self.latency?.for_deferred()) } else { None },
            texts,
            floats,
            fields: self.reads(probe),
            unwind,
            at_entry,
            goroutine,
        })
    }
    /// The stub at `at`, up to the displaced code. `None` if durations or records are requested and there is
    /// no place for them.
    pub(super) fn begin(&self, at: RemoteAddr, action: SiteAction) -> Option<Begun<'_>> {
        let timed = |function, goroutine| {
            let latency = self.latency.as_ref()?;
            Some(Timed { machine: &self.machine, latency, function, goroutine })
        };
        Some(match action {
            SiteAction::Count { probe } => match self.threads() {
                Some(threads) => Begun::Threads(stub::count_by_thread(at.0, &self.machine, &threads, probe)),
                None => {
                    let word = self.data.of(self.layout.counters.word(probe));
                    Begun::Count(stub::count(at.0, &self.machine, word, false))
                }
            },
            SiteAction::FilteredCount { probe, .. } => {
                let word = self.data.of(self.layout.counters.word(probe));
                let filtered = self.filtered(probe)?;
                Begun::FilteredCount(stub::count_filtered(at.0, &self.machine, self.id, filtered, word))
            }
            SiteAction::Tally { probe, kind, late: true, goroutine, .. } => {
                let (traced, tallied) = self.aggregated(probe, goroutine)?;
                match kind {
                    RecordKind::Entry => Begun::Deferred(stub::defer(at.0, traced, kind, ARGUMENTS)?),
                    _ => Begun::Aggregated(stub::aggregate_call(at.0, traced, tallied, kind)?),
                }
            }
            SiteAction::Tally { probe, kind, goroutine, .. } => {
                let seen = (kind != RecordKind::Tail, goroutine);
                let filtered = Some(self.filtered(probe)?).filter(|one| !one.filter.passes_all());
                let tallied = self.tallied(probe)?;
                Begun::Tallied(stub::tally(at.0, &self.machine, self.id, filtered, tallied, seen))
            }
            SiteAction::Enter { latency, looped, goroutine } => {
                Begun::Latency(stub::latency_enter(at.0, timed(latency, goroutine)?, looped))
            }
            SiteAction::Arm { latency, signed } => {
                Begun::Latency(stub::latency_arm(at.0, timed(latency, false)?, signed)?)
            }
            SiteAction::Exit { latency, kind, goroutine } => {
                Begun::Latency(stub::latency_exit(at.0, timed(latency, goroutine)?, kind))
            }
            SiteAction::Record(record) => {
                let (traced, values) = (self.traced(record)?, record.values.into());
                match stub::defer(at.0, traced, record.kind, values) {
                    Some(deferred) => Begun::Deferred(deferred),
                    None => Begun::Traced(stub::trace(at.0, traced, record.kind, values)),
                }
            }
        })
    }
}

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
pub(super) enum Begun<'a> {
    Count(stub::UnfinishedCount),
    Threads(stub::threads::UnfinishedThreadCount),
    FilteredCount(stub::filtered_count::UnfinishedFilteredCount),
    Tallied(stub::tally::UnfinishedTally),
    Latency(stub::latency::UnfinishedLatency<'a>),
    Traced(stub::trace::UnfinishedTrace<'a>),
    Deferred(stub::deferred::UnfinishedDeferred<'a>),
    Aggregated(stub::aggregate_at_return::UnfinishedAggregation<'a>),
}

impl Code for Begun<'_> {
    fn displaced_at(&self) -> u64 {
        match self {
            Self::Count(pending) => pending.displaced_at(),
            Self::Threads(pending) => pending.displaced_at(),
            Self::FilteredCount(pending) => pending.displaced_at(),
            Self::Tallied(pending) => pending.displaced_at(),
            Self::Latency(pending) => pending.displaced_at(),
            Self::Traced(pending) => pending.displaced_at(),
            Self::Deferred(pending) => pending.displaced_at(),
            Self::Aggregated(pending) => pending.displaced_at(),
        }
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        match self {
            Self::Count(pending) => pending.finish(displaced, back),
            Self::Threads(pending) => pending.finish(displaced, back),
            Self::FilteredCount(pending) => pending.finish(displaced, back),
            Self::Tallied(pending) => pending.finish(displaced, back),
            Self::Latency(pending) => pending.finish(displaced, back),
            Self::Traced(pending) => pending.finish(displaced, back),
            Self::Deferred(pending) => pending.finish(displaced, back),
            Self::Aggregated(pending) => pending.finish(displaced, back),
        }
    }
}
