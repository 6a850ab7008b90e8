//! Reads stacks from a process' rings, and sums them.
//!
//! In: the rings of all its segments; what is mapped as code, at each look and whenever an address lies in no
//! known mapping. Out: [`StackSum`]s; where exits are recorded, [`Times`] of each site. Invariant: STA-1.
//! Does not: name anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use trapline_order::Order as _;
use trapline_patch::Segment;
use trapline_plan::{Action, Unwind};
use trapline_record::hist::BUCKETS;
use trapline_record::ring::{Record, RecordKind};
use trapline_record::stack::{FIRST, Stack};
use trapline_tracee::{Mapping, Process, TickClock};

use super::rings::Rings;
use super::site_table::{SiteTable, Tracked};
use super::target_process::TargetProcess;
use crate::calls::{Call, CallEnd, FloatArguments, OPERANDS};
use crate::decode::{Clock, Counts, Decoder, TextKey, text_key};
use crate::histogram::{Histogram, TickScale};
use crate::pairing::{FoundRecord, Paired};
use crate::quick::InTurn;
use crate::report::{Site, Times};
use crate::stacks::{Ended, Frame, HitStack, SeenCode, StackCopy, StackId, StackSum, Sums, open};

/// A hit with its stack, before its time is known.
#[derive(Debug)]
pub(super) struct SeenHit {
    pub(super) tid: u32,
    ticks: u64,
    site: Arc<Site>,
    stack: HitStack,
}

impl SeenHit {
    fn new(sums: &Sums, site: &Arc<Site>, record: &Record, stack: StackId) -> Option<Self> {
        let seen = sums.stack(stack)?;
        let here = sums.places.site(&site.file, site.offset);
        let stack = HitStack { here, callers: Arc::clone(&seen.callers), cut: seen.cut };
        Some(Self { tid: record.tid, ticks: record.ticks, site: Arc::clone(site), stack })
    }
    /// The call of which it is the entry.
    pub(super) fn call(self, pid: u32, tid: u32, (start, ns_per_tick): Clock) -> Call {
        let since = self.ticks.saturating_sub(start) as f64 * ns_per_tick;
        Call {
            pid,
            tid,
            site: self.site,
            at: Duration::from_nanos(since.round() as u64),
            arguments: [0; OPERANDS],
            unseen: u16::MAX,
            float_arguments: FloatArguments::default(),
            floats: [0; 8],
            texts: Vec::new(),
            fields: Vec::new(),
            kept: Vec::new(),
            returned: None,
            results: Vec::new(),
            took: None,
            how: CallEnd::Entered,
            stack: Some(self.stack),
        }
    }
}

/// How the records of a probe are to be read.
#[derive(Clone, Debug)]
struct StackReading {
    site: Arc<Site>,
    unwind: Unwind,
    waits: bool,
    /// Address of the probed instruction, where stacks are copied.
    pc: u64,
}

impl StackReading {
    /// Puts a stack's return addresses into `addresses`, given the words of its record. Returns whether the
    /// stack goes on.
    fn unwind(
        &self,
        sums: &mut Sums,
        stack: &Stack,
        sp: u64,
        words: &mut Vec<u64>,
        addresses: &mut Vec<u64>,
    ) -> bool {
        match self.unwind {
            Unwind::Copy(_) => {
                let copy = StackCopy { pc: self.pc, sp, frame: stack.frame, words };
                sums.copies.unwind(&sums.places, copy, addresses)
            }
            Unwind::Frames(frames) => {
                std::mem::swap(words, addresses);
                stack.is_cut(frames)
            }
            Unwind::None => false,
        }
    }
}

/// Stacks of one process.
#[derive(Debug, Default)]
pub(super) struct StackReader {
    sums: Sums,
    /// Stacks of entries of calls that have not ended.
    waiting: InTurn<TextKey, StackId>,
}

impl StackReader {
    /// Notes where code is mapped now.
    pub(super) fn note_code(&mut self, process: &Process, maps: &[Mapping]) {
        if self.sums.places.update(maps, open(process)) {
            self.sums.renumber();
        }
    }
    /// Sums what was recorded since the last call; if `last`, also calls that have not ended.
    pub(super) fn read(
        &mut self,
        process: &Process,
        sites: &SiteTable,
        segments: &[Segment],
        (rings, decoder): (&mut Rings, &mut Decoder),
        (last, hits): (bool, &mut Option<Vec<SeenHit>>),
    ) {
        let Self { sums, waiting } = self;
        let wanted = wanted(sites, &sums.places);
        let begun = (!last).then(TickClock::ticks);
        let mut looked = false;
        let mut round = std::mem::take(&mut decoder.round);
        let mut look =
            |places: &mut SeenCode| !std::mem::replace(&mut looked, true) && update(process, places);
        let (mut addresses, mut words) = (Vec::new(), Vec::new());
        rings.drain(segments, |nth, room, record, word| {
            let Some(wanted) = wanted.get(&(nth, record.probe)) else { return };
            if record.kind == RecordKind::Entry {
                decoder.read.add(nth, record.probe, 1);
                let stack = Stack::new(record, room);
                words.clear();
                words.extend((0..stack.words).map(|n| word(FIRST + n)));
                let cut = wanted.unwind(sums, &stack, record.sp, &mut words, &mut addresses);
                let stack = sums.number(&addresses, cut, &mut look);
                if let Some(hits) = hits {
                    hits.extend(SeenHit::new(sums, &wanted.site, record, stack));
                }
                if wanted.waits {
                    waiting.insert(text_key(nth, record), stack);
                } else {
                    sums.add(nth, record.probe, stack, 0);
                }
            }
            if wanted.waits {
                round.push(FoundRecord::new(nth, *record));
            }
        });
        self.end_calls(decoder, round, begun);
    }
    /// Pairs entries and exits, and adds the calls that ended. `begun` is as in
    /// [`Pairing::feed`](crate::pairing::Pairing::feed).
    fn end_calls(&mut self, decoder: &mut Decoder, mut round: Vec<FoundRecord>, begun: Option<u64>) {
        // All records of the round belong to probes with recorded exits.
        let mut ended = Vec::new();
        decoder.pairing.feed(&mut round, begun, |_, _| true, |paired| ended.push(paired));
        decoder.round = round;
        for paired in ended {
            let sum = self.sums.ended.entry((paired.segment, paired.entry.probe)).or_default();
            match paired.exit {
                Some(exit) => sum.add(exit.ticks.saturating_sub(paired.entry.ticks)),
                None => sum.unreturned += 1,
            }
            sum.tail_exits += u64::from(paired.how == CallEnd::TailCall);
            self.end_call(&paired);
        }
        // At the end: the rest counts as calls that are still running.
        let rest = if begun.is_none() { decoder.pairing.rest() } else { Vec::new() };
        rest.iter().for_each(|paired| self.end_call(paired));
    }
    fn end_call(&mut self, &Paired { segment, ref entry, exit, .. }: &Paired) {
        if let Some(stack) = self.waiting.remove(&text_key(segment, entry)) {
            let ticks = exit.map_or(0, |exit| exit.ticks.saturating_sub(entry.ticks));
            self.sums.add(segment, entry.probe, stack, ticks);
        }
    }
    /// Durations of calls of each site, if these are summed. `read` counts the entries that were read.
    pub(super) fn times(&self, sites: &SiteTable, read: &Counts, scale: TickScale) -> Vec<Times> {
        let waits = |tracked: &&Tracked| matches!(tracked.action, Action::Record { returns: true, .. });
        sites.iter().filter(waits).map(|tracked| self.times_of(tracked, read, scale)).collect()
    }
    fn times_of(&self, tracked: &Tracked, read: &Counts, scale: TickScale) -> Times {
        let (mut all, mut buckets) = (Ended::default(), vec![0; BUCKETS]);
        for ended in tracked.counters().filter_map(|key| self.sums.ended.get(&key)) {
            buckets.iter_mut().zip(&ended.buckets).for_each(|(sum, calls)| *sum += calls);
            all.tail_exits += ended.tail_exits;
            all.unreturned += ended.unreturned;
            all.total += ended.total;
            all.min = all.min.min(ended.min);
            all.max = all.max.max(ended.max);
        }
        let calls: u64 = buckets.iter().sum();
        let read: u64 = tracked.counters().map(|(segment, probe)| read.get(segment, probe)).sum();
        Times {
            site: Some(Arc::clone(&tracked.site)),
            calls,
            tail_exits: all.tail_exits,
            in_flight: read.saturating_sub(calls + all.unreturned),
            unreturned: all.unreturned,
            total_ns: scale.nanos(all.total),
            min_ns: if calls == 0 { 0 } else { scale.nanos(all.min) },
            max_ns: scale.nanos(all.max),
            histogram: Histogram::new(&buckets, scale),
            ..Times::default()
        }
    }
    /// All sums, most calls first.
    pub(super) fn sums(&self, target: &TargetProcess, sites: &SiteTable, ns_per_tick: f64) -> Vec<StackSum> {
        let sites: HashMap<(usize, u32), &Arc<Site>> = sites
            .iter()
            .flat_map(|tracked| tracked.counters().map(move |counter| (counter, &tracked.site)))
            .collect();
        let mut all: Vec<StackSum> = Vec::new();
        let mut known: HashMap<Vec<(usize, u64)>, Vec<usize>> = HashMap::new();
        for (segment, probe, stack, sum) in self.sums.all() {
            let Some(&site) = sites.get(&(segment, probe)) else { continue };
            let time = Duration::from_nanos((sum.ticks as f64 * ns_per_tick).round() as u64);
            let same = known.entry(stack.callers.iter().map(place).collect()).or_default();
            let before = same.iter().copied().find(|&n| {
                let other = &all[n];
                Arc::ptr_eq(&other.site, site)
                    && other.frames[1..] == *stack.callers
                    && other.cut == stack.cut
            });
            if let Some(before) = before {
                all[before].calls += sum.calls;
                all[before].time += time;
                continue;
            }
            same.push(all.len());
            let frames = std::iter::once(self.sums.places.site(&site.file, site.offset))
                .chain(stack.callers.iter().cloned());
            all.push(StackSum {
                pid: target.pid(),
                process: target.name.clone(),
                site: Arc::clone(site),
                frames: frames.collect(),
                cut: stack.cut,
                calls: sum.calls,
                time,
            });
        }
        all.order_by_key(|sum| std::cmp::Reverse((sum.time, sum.calls)));
        all
    }
}

/// How the records of each probe are to be read.
fn wanted(sites: &SiteTable, places: &SeenCode) -> HashMap<(usize, u32), StackReading> {
    let of = |tracked: &Tracked| {
        let (unwind, waits) = match tracked.action {
            Action::Record { stack, returns, .. } => (stack, returns),
            Action::RecordAt(_, unwind) => (unwind, false),
            _ => return None,
        };
        let copied = matches!(unwind, Unwind::Copy(_));
        let pc = if copied { places.site(&tracked.site.file, tracked.site.offset).address } else { 0 };
        Some(StackReading { site: Arc::clone(&tracked.site), unwind, waits, pc })
    };
    let sites = sites.iter().filter_map(|tracked| Some((tracked, of(tracked)?)));
    sites.flat_map(|(tracked, wanted)| tracked.counters().map(move |key| (key, wanted.clone()))).collect()
}

/// Looks at what is mapped now. Returns whether that is new.
pub(super) fn update(process: &Process, places: &mut SeenCode) -> bool {
    process.maps().is_ok_and(|maps| places.update(&maps, open(process)))
}

fn place(frame: &Frame) -> (usize, u64) {
    frame.place.as_ref().map_or((0, frame.address), |(file, offset)| (Arc::as_ptr(file).addr(), *offset))
}
