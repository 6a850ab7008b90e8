//! Everything that stubs depend on, in addition to their site.
//!
//! In: the module's input, and where its data lies. Out: the values that stubs are made with, for each probe.
//! Does not: emit code.

use trapline_record::addr::Bias;
use trapline_record::control;
use trapline_record::counters::filtered;
use trapline_record::ring::{RecordKind, RingArea};

use crate::aarch64::action::{Record, SiteAction};
use crate::aarch64::stub::arguments::ArgumentForm;
use crate::aarch64::stub::run::Ran;
use crate::aarch64::stub::{
    Filtered, Latency, Machine, Rings, TableLocation, Tallied, Threads, Timed, Traced,
};
use crate::filter::TargetFilter;
use crate::hit::MapsAt;
use crate::layout::{DataAt, DataLayout};
use crate::machine::{Stacks, ThreadId};
use crate::request::{LatencyInput, Read, Unwind};

/// What all stubs of a segment share.
pub(in crate::aarch64) struct Setting<'a> {
    pub(in crate::aarch64) machine: Machine,
    pub(in crate::aarch64) layout: &'a DataLayout,
    pub(in crate::aarch64) data: DataAt,
    pub(in crate::aarch64) latency: Option<Latency>,
    /// Where records go, if records are requested.
    pub(in crate::aarch64) rings: Option<Rings>,
    /// By probe: the filter that decides which hits count, and how they are aggregated.
    pub(in crate::aarch64) filters: &'a [Option<TargetFilter>],
    /// How a thread's number is read.
    pub(in crate::aarch64) id: ThreadId,
    /// Describes what entries keep for returns that aggregate: it is as large as a stamp cell, and there is
    /// no ring.
    pub(in crate::aarch64) places: Rings,
    /// Where a script's maps are.
    pub(in crate::aarch64) maps: MapsAt,
    /// Where stacks end.
    pub(in crate::aarch64) stacks: Stacks,
    /// By how many bytes lower than the program's stack pointer stubs begin (GO-2).
    pub(in crate::aarch64) below: u32,
    /// How far the module is mapped from where its file says.
    pub(in crate::aarch64) bias: Bias,
}

impl<'a> Setting<'a> {
    pub(in crate::aarch64) fn new(
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
        let (bias, stacks) = (Bias::default(), Stacks::default());
        let (maps, sharers) = (data.of(layout.maps.off), data.of(control::at::SHARERS));
        let maps = MapsAt { maps, own_page: 0, sharers };
        Self {
            machine,
            layout,
            data,
            latency,
            rings: None,
            filters,
            id,
            places,
            maps,
            stacks,
            below: 0,
            bias,
        }
    }
    /// The filter of a probe, with the words in which its rejected hits are counted.
    pub(super) fn filtered(&self, probe: u32) -> Option<Filtered<'a>> {
        let filter = self.filters.get(probe as usize)?.as_ref()?;
        let words = self.data.of(self.layout.filtered.word(filtered::WORDS * probe));
        let names = self.layout.names;
        let names = (filter.by_name && !names.is_empty()).then_some(self.data.of(names.off));
        Some(Filtered { filter, words, names })
    }
    /// Where hits are counted by thread, if they are.
    pub(super) fn threads(&self) -> Option<Threads> {
        let area = self.layout.threads;
        (!area.is_empty()).then(|| Threads { area, tags: self.data.of(area.off), id: self.id })
    }
    /// Where an action finds arguments; as in C unless it is at a USDT probe.
    pub(super) fn arguments(&self, action: SiteAction) -> ArgumentForm<'a> {
        let (SiteAction::Record(Record { probe, noted: true, .. })
        | SiteAction::Tally { probe, kind: RecordKind::Entry, .. }) = action
        else {
            return ArgumentForm::AsInC;
        };
        let filter = self.filters.get(probe as usize).and_then(Option::as_ref);
        filter
            .filter(|filter| !filter.operands.is_empty())
            .map_or(ArgumentForm::AsInC, |filter| ArgumentForm::AsNoted(&filter.operands, self.bias))
    }
    /// What is read from memory for a probe.
    fn reads(&self, probe: u32) -> &'a [Read] {
        let filter = self.filters.get(probe as usize).and_then(Option::as_ref);
        filter.map_or(&[], |filter| &filter.reads)
    }
    /// What calls of a probe keep, and how they are aggregated when they return.
    pub(super) fn aggregated(&self, probe: u32, goroutine: bool) -> Option<(Traced<'_>, Tallied<'a>)> {
        let (filtered, tallied) = (self.filtered(probe)?, self.tallied(probe)?);
        let traced = Traced {
            machine: &self.machine,
            rings: &self.places,
            probe,
            dropped: self.data.of(self.layout.counters.word(probe)),
            filter: Some(filtered),
            marks: Some(self.latency?.for_deferred()),
            texts: tallied.tally.texts(),
            ended: 0,
            floats: filtered.filter.left_floats(),
            valued: false,
            fields: tallied.reads,
            unwind: Unwind::None,
            at_entry: true,
            goroutine,
            bias: self.bias,
        };
        Some((traced, tallied))
    }
    /// What a probe's hits run, if that is a program of their own.
    pub(super) fn ran(&self, probe: u32, goroutine: bool) -> Option<Ran<'a>> {
        let filter = self.filters.get(probe as usize)?.as_ref()?;
        let counter = self.data.of(self.layout.counters.word(probe));
        let (hit, stacks) = (filter.program.as_deref()?, self.stacks);
        let (fields, taken, inside) = (&filter.reads[..], &filter.taken[..], filter.inside);
        let (maps, bias) = (self.maps, self.bias);
        Some(Ran { hit, maps, probe, counter, stacks, goroutine, fields, taken, inside, bias })
    }
    /// How a probe's hits are aggregated.
    pub(super) fn tallied(&self, probe: u32) -> Option<Tallied<'a>> {
        let filter = self.filters.get(probe as usize)?.as_ref()?;
        let area = self.layout.tallies;
        let table = TableLocation { area, base: self.data.of(area.table(probe)) };
        Some(Tallied { tally: filter.tally.as_ref()?, table, reads: &filter.reads, bias: self.bias })
    }
    pub(super) fn traced(&self, record: Record) -> Option<Traced<'_>> {
        let Record { probe, texts, ended, floats, valued, unwind, at_entry, .. } = record;
        let Record { decides, returns, goroutine, .. } = record;
        let filter = if decides.is_some() { Some(self.filtered(probe)?) } else { None };
        Some(Traced {
            machine: &self.machine,
            rings: self.rings.as_ref()?,
            probe,
            dropped: self.data.of(self.layout.counters.word(probe)),
            filter,
            marks: if returns && filter.is_some() { Some(self.latency?.for_deferred()) } else { None },
            texts,
            ended,
            floats,
            valued,
            fields: self.reads(probe),
            unwind,
            at_entry,
            goroutine,
            bias: self.bias,
        })
    }
    /// A timed function's site; `None` if no durations are measured.
    pub(super) fn timed(&self, function: u32, goroutine: bool) -> Option<Timed<'_>> {
        let latency = self.latency.as_ref()?;
        Some(Timed { machine: &self.machine, latency, function, goroutine })
    }
}
