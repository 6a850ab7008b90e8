//! Reads stacks from a process' rings, and sums them.
//!
//! In: the rings of all its segments; what is mapped as code, at each look and whenever an address lies in no
//! known mapping. Out: [`StackSum`]s; where exits are recorded, [`Times`] of each site. Invariant: STA-1.
//! Does not: name anything.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use trapline_plan::{Action, Unwind};
use trapline_record::hist::BUCKETS;
use trapline_record::ring::{Record, RecordKind as Kind};
use trapline_record::stack::{FIRST, Stack};
use trapline_tracee::{Mapping, Process, TickClock};

use super::records::Records;
use super::{Source, Traced, Tracked};
use crate::calls::{CallEnd, FoundRecord, Paired};
use crate::decode::text_key;
use crate::histogram::{Histogram, Scale};
use crate::report::{Site, Times};
use crate::stacks::{Copy, Ended, Frame, SeenCode, StackSum, Sums, open};

/// How the records of a probe are to be read.
#[derive(Clone, Copy, Debug)]
struct StackReading {
    unwind: Unwind,
    waits: bool,
    /// Address of the probed instruction, where stacks are copied.
    pc: u64,
}

impl Traced {
    /// Notes where code is mapped now, if stacks are summed.
    pub(super) fn note_code(&mut self, maps: &[Mapping]) {
        if let Some(sums) = &mut self.records.sums
            && sums.places.update(maps, open(&self.process))
        {
            sums.renumber();
        }
    }
    /// Sums what was recorded since the last call; if `last`, also calls that have not ended.
    pub(crate) fn sum_stacks(&mut self, last: bool) {
        let Some(mut sums) = self.records.sums.take() else { return };
        let wanted = self.wanted(&sums.places);
        self.records.decoder.pairing.exits_name_no_thread = self.is_go || self.attached.asks_for_thread();
        let begun = (!last).then(TickClock::ticks);
        let (process, mut looked) = (&self.process, false);
        let mut round = std::mem::take(&mut self.records.decoder.round);
        let mut look =
            |places: &mut SeenCode| !std::mem::replace(&mut looked, true) && update(process, places);
        let (mut addresses, mut words, mut early) = (Vec::new(), Vec::new(), Vec::new());
        self.records.drain(self.attached.segments(), |records, nth, room, record, word| {
            let Some(wanted) = wanted.get(&(nth, record.probe)) else { return };
            if record.kind == Kind::Entry {
                records.decoder.read.add(nth, record.probe, 1);
                let stack = Stack::new(record, room);
                words.clear();
                words.extend((0..stack.words).map(|n| word(FIRST + n)));
                let cut = match wanted.unwind {
                    Unwind::Copy(_) => {
                        let copy = Copy { pc: wanted.pc, sp: record.sp, frame: stack.frame, words: &words };
                        sums.copies.unwind(&sums.places, copy, &mut addresses)
                    }
                    Unwind::Frames(frames) => {
                        std::mem::swap(&mut words, &mut addresses);
                        stack.is_cut(frames)
                    }
                    Unwind::None => false,
                };
                let stack = sums.number(&addresses, cut, &mut look);
                if wanted.waits {
                    early.push((text_key(nth, record), stack));
                } else {
                    sums.add(nth, record.probe, stack, 0);
                }
            }
            if wanted.waits {
                round.push(FoundRecord::new(nth, *record));
            }
        });
        early.into_iter().for_each(|(key, stack)| self.records.stacks.insert(key, stack));
        self.records.end_calls(&mut sums, round, begun);
        self.records.sums = Some(sums);
    }
    fn wanted(&self, places: &SeenCode) -> HashMap<(usize, u32), StackReading> {
        let of = |tracked: &Tracked| {
            let (unwind, waits) = match tracked.action {
                Action::Record { stack, returns, .. } => (stack, returns),
                Action::RecordAt(_, unwind) => (unwind, false),
                _ => return None,
            };
            let copied = matches!(unwind, Unwind::Copy(_));
            let pc = if copied { places.site(&tracked.site.file, tracked.site.offset).address } else { 0 };
            Some(StackReading { unwind, waits, pc })
        };
        let sites = self.sites.iter().filter_map(|tracked| Some((tracked, of(tracked)?)));
        sites.flat_map(|(tracked, wanted)| tracked.counters().map(move |key| (key, wanted))).collect()
    }
    /// Durations of calls of each site, if these are summed.
    pub(super) fn times_of_stacks(&self, scale: Scale) -> Vec<Times> {
        let Some(sums) = &self.records.sums else { return Vec::new() };
        let waits = |tracked: &&Tracked| matches!(tracked.action, Action::Record { returns: true, .. });
        self.sites.iter().filter(waits).map(|tracked| self.times_of(tracked, sums, scale)).collect()
    }
    fn times_of(&self, tracked: &Tracked, sums: &Sums, scale: Scale) -> Times {
        let (mut all, mut buckets) = (Ended::default(), vec![0; BUCKETS]);
        for ended in tracked.counters().filter_map(|key| sums.ended.get(&key)) {
            buckets.iter_mut().zip(&ended.buckets).for_each(|(sum, calls)| *sum += calls);
            all.tail_exits += ended.tail_exits;
            all.unreturned += ended.unreturned;
            all.total += ended.total;
            all.min = all.min.min(ended.min);
            all.max = all.max.max(ended.max);
        }
        let calls: u64 = buckets.iter().sum();
        let read: u64 =
            tracked.counters().map(|(segment, probe)| self.records.decoder.read.get(segment, probe)).sum();
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
    pub(crate) fn stack_sums(&self, ns_per_tick: f64) -> Vec<StackSum> {
        let Some(sums) = &self.records.sums else { return Vec::new() };
        let sites: HashMap<(usize, u32), &Arc<Site>> = self
            .sites
            .iter()
            .flat_map(|tracked| tracked.sources.iter().map(move |source| (source, &tracked.site)))
            .filter_map(|(source, site)| match *source {
                Source::Counter { segment, index, .. } => Some(((segment, index), site)),
                Source::Kernel { .. } => None,
            })
            .collect();
        let mut all: Vec<StackSum> = Vec::new();
        let mut known: HashMap<Vec<(usize, u64)>, Vec<usize>> = HashMap::new();
        for (segment, probe, stack, sum) in sums.all() {
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
            let frames = std::iter::once(sums.places.site(&site.file, site.offset))
                .chain(stack.callers.iter().cloned());
            all.push(StackSum {
                pid: self.process.pid(),
                process: self.name.clone(),
                site: Arc::clone(site),
                frames: frames.collect(),
                cut: stack.cut,
                calls: sum.calls,
                time,
            });
        }
        all.sort_by_key(|sum| std::cmp::Reverse((sum.time, sum.calls)));
        all
    }
}

impl Records {
    /// Pairs entries and exits, and adds the calls that ended. `begun` is as in
    /// [`Pairing::feed`](crate::calls::Pairing::feed).
    fn end_calls(&mut self, sums: &mut Sums, mut round: Vec<FoundRecord>, begun: Option<u64>) {
        // All records of the round belong to probes whose exits are recorded.
        let mut ended = Vec::new();
        self.decoder.pairing.feed(&mut round, begun, |_, _| true, |paired| ended.push(paired));
        self.decoder.round = round;
        for Paired { segment, entry, exit, how } in ended {
            let sum = sums.ended.entry((segment, entry.probe)).or_default();
            match exit {
                Some(exit) => sum.add(exit.ticks.saturating_sub(entry.ticks)),
                None => sum.unreturned += 1,
            }
            sum.tail_exits += u64::from(how == CallEnd::TailCall);
            self.end_call(sums, segment, &entry, exit);
        }
        // At the end: the rest counts as calls that are still running.
        let rest = if begun.is_none() { self.decoder.pairing.rest() } else { Vec::new() };
        rest.into_iter().for_each(|paired| self.end_call(sums, paired.segment, &paired.entry, paired.exit));
    }
    fn end_call(&mut self, sums: &mut Sums, segment: usize, entry: &Record, exit: Option<Record>) {
        if let Some(stack) = self.stacks.remove(&text_key(segment, entry)) {
            let ticks = exit.map_or(0, |exit| exit.ticks.saturating_sub(entry.ticks));
            sums.add(segment, entry.probe, stack, ticks);
        }
    }
}

fn update(process: &Process, places: &mut SeenCode) -> bool {
    process.maps().is_ok_and(|maps| places.update(&maps, open(process)))
}

fn place(frame: &Frame) -> (usize, u64) {
    frame.place.as_ref().map_or((0, frame.address), |(file, offset)| (Arc::as_ptr(file).addr(), *offset))
}
