//! Records read from a process' rings.
//!
//! In: the rings of all its segments. Out: [`Call`]s, and how many records were read for each site. Invariant: LOSS-2 hits are records
//! read and records dropped, to the hit. Does not: put entries and exits together (`crate::calls`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trapline_patch::Segment;
use trapline_plan::Role;
use trapline_record::ring::{FIRST_TEXT, Kind, Record, TEXT_WORDS, first_float};

use super::{Source, Traced, Tracked};
use crate::calls::{Call, Found, Paired, Pairing, Text};
use crate::filter::Filter;
use crate::report::{Filtered, Site};
use crate::stacks::{StackId, Sums};

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Bytes taken, for each segment and ring.
    tails: Vec<Vec<u64>>,
    pub(super) pairing: Pairing,
    /// Entries read, by segment and probe.
    pub(super) read: HashMap<(usize, u32), u64>,
    /// Texts and floats of entries whose calls have not been told: by segment, probe, thread, stack pointer and time.
    texts: HashMap<TextKey, Beside>,
    /// Stacks of such entries.
    pub(super) stacks: HashMap<TextKey, StackId>,
    /// Sums of stacks, where these are asked for.
    pub(super) sums: Option<Sums>,
    /// Entries read whose calls a filter left out.
    left_out: HashMap<(usize, u32), u64>,
    /// When it was last forgotten which pages texts may be loaded from.
    forgot: Option<Instant>,
    /// Heads that could not be: the target wrote over them.
    pub(super) broken: u64,
}

/// How long a page that the kernel read is loaded from without asking it again.
const FORGET: Duration = Duration::from_millis(100);

/// What an entry's record holds besides integers.
#[derive(Clone, Debug, Default)]
struct Beside {
    texts: Vec<Text>,
    floats: [u64; 8],
    fields: Vec<Text>,
}

pub(super) type TextKey = (usize, u32, u32, u64, u64);

pub(super) const fn text_key(segment: usize, record: &Record) -> TextKey {
    (segment, record.probe, record.tid, record.sp, record.ticks)
}

impl Records {
    /// Takes what is in all rings: each record with its segment, the words of a record there, and access to them.
    pub(super) fn drain(
        &mut self,
        segments: &[Segment],
        mut each: impl FnMut(&mut Self, usize, u64, &Record, &dyn Fn(u64) -> u64),
    ) {
        let forgets = self.forgot.is_none_or(|at| at.elapsed() >= FORGET);
        if forgets {
            self.forgot = Some(Instant::now());
        }
        for (nth, segment) in segments.iter().enumerate() {
            let rings = segment.rings();
            if self.tails.len() == nth {
                self.tails.push(vec![0; rings.rings as usize]);
            }
            let room = u64::from(rings.slot) / 8;
            let mut tails = std::mem::take(&mut self.tails[nth]);
            for (ring, tail) in (0..).zip(&mut tails) {
                let each = |record: &Record, word: &dyn Fn(u64) -> u64| each(self, nth, room, record, word);
                let taken = rings.take_words(segment.view(), ring, tail, each);
                self.broken += u64::from(taken.is_err());
            }
            self.tails[nth] = tails;
            if forgets {
                segment.layout().pages.forget(segment.view());
            }
        }
    }
}

impl Traced {
    /// What was recorded since the last call; with `last` also what has not ended. `start` is the tick at which time begins.
    pub(crate) fn calls(&mut self, start: u64, ns_per_tick: f64, last: bool) -> Vec<Call> {
        if self.records.sums.is_some() {
            self.sum_stacks(last);
            return Vec::new();
        }
        let round = self.take_records();
        let sites: HashMap<(usize, u32), (&Arc<Site>, bool)> = self
            .sites
            .iter()
            .flat_map(|tracked| {
                let waits = matches!(tracked.role, Role::Record { returns: true, .. });
                tracked.sources.iter().filter_map(move |source| match *source {
                    Source::Counter { segment, index, .. } => {
                        Some(((segment, index), (&tracked.site, waits)))
                    }
                    Source::Kernel { .. } => None,
                })
            })
            .collect();
        self.records.pairing.exits_name_no_thread = self.attached.asks_for_thread();
        let waits = |segment, probe| sites.get(&(segment, probe)).is_some_and(|site| site.1);
        let mut paired = self.records.pairing.feed(round, waits);
        if last {
            paired.extend(self.records.pairing.rest());
        }
        let since = |ticks: u64, from: u64| {
            Duration::from_nanos((ticks.saturating_sub(from) as f64 * ns_per_tick).round() as u64)
        };
        let mut texts = std::mem::take(&mut self.records.texts);
        let mut call = |Paired { segment, entry, exit, how }: Paired| {
            let Beside { texts, floats, fields } =
                texts.remove(&text_key(segment, &entry)).unwrap_or_default();
            let (site, _) = sites.get(&(segment, entry.probe))?;
            let mut arguments = [0; 6];
            arguments.copy_from_slice(&entry.values[..6]);
            Some(Call {
                pid: self.process.pid(),
                tid: entry.tid,
                site: Arc::clone(site),
                at: since(entry.ticks, start),
                arguments,
                floats,
                texts,
                fields,
                returned: exit.filter(|exit| exit.kind == Kind::Return).map(|exit| exit.values[0]),
                took: exit.map(|exit| since(exit.ticks, entry.ticks)),
                how,
            })
        };
        let calls: Vec<((usize, u32), Call)> = paired
            .into_iter()
            .filter_map(|paired| Some(((paired.segment, paired.entry.probe), call(paired)?)))
            .collect();
        self.records.texts = texts;
        self.pass(calls)
    }
    /// The name of a thread by the number in its records.
    pub(crate) fn thread_name(&mut self, tid: u32) -> Option<String> {
        self.names.look(self.process.pid(), &self.children, &std::iter::once(tid).collect(), false);
        self.names.get(tid).comm
    }
    /// Those calls that filters let the reader tell.
    fn pass(&mut self, calls: Vec<((usize, u32), Call)>) -> Vec<Call> {
        let filters: HashMap<(usize, u32), Arc<Filter>> = self
            .sites
            .iter()
            .filter_map(|tracked| Some((tracked, tracked.filter.as_ref().filter(|filter| filter.is_late())?)))
            .flat_map(|(tracked, filter)| tracked.counters().map(|key| (key, Arc::clone(filter))))
            .collect();
        if filters.is_empty() {
            return calls.into_iter().map(|(_, call)| call).collect();
        }
        if filters.values().any(|filter| filter.is_named()) {
            let threads = calls.iter().map(|(_, call)| call.tid).collect();
            self.names.look(self.process.pid(), &self.children, &threads, false);
        }
        let mut passed = Vec::new();
        for (key, call) in calls {
            let comm = self.names.get(call.tid).comm;
            match filters.get(&key) {
                Some(filter) if !filter.passes(&call, comm.as_deref()) => {
                    *self.records.left_out.entry(key).or_default() += 1;
                }
                _ => passed.push(call),
            }
        }
        passed
    }
    /// Hits of a site that a filter kept back.
    pub(super) fn filtered(&self, tracked: &Tracked) -> Option<Filtered> {
        tracked
            .filter
            .as_ref()
            .filter(|filter| filter.rejects() || filter.tallied().is_none() && !filter.only_reads())?;
        let mut filtered = Filtered::default();
        for (nth, probe) in tracked.counters() {
            let segment = &self.attached.segments()[nth];
            let words = segment.filtered();
            if !words.is_empty() {
                filtered.in_target += words.read(segment.view(), 2 * probe);
            }
            filtered.by_reader += self.records.left_out.get(&(nth, probe)).copied().unwrap_or(0);
        }
        Some(filtered)
    }
    /// Of all sites.
    pub(crate) fn all_filtered(&self) -> Option<Filtered> {
        let all = self.sites.iter().filter_map(|tracked| self.filtered(tracked));
        all.reduce(|sum, one| Filtered {
            in_target: sum.in_target + one.in_target,
            by_reader: sum.by_reader + one.by_reader,
        })
    }
    fn take_records(&mut self) -> Vec<Found> {
        let mut round = Vec::new();
        let shapes = self.shapes();
        self.records.drain(self.attached.segments(), |records, nth, _, record, word| {
            if record.kind == Kind::Entry {
                if let Some(shape) = shapes.get(&(nth, record.probe)) {
                    records.texts.insert(text_key(nth, record), shape.read(word));
                }
                *records.read.entry((nth, record.probe)).or_default() += 1;
            }
            round.push((nth, *record));
        });
        round
    }
    /// What entries' records hold besides integers, by segment and probe.
    fn shapes(&self) -> HashMap<(usize, u32), Shape> {
        let shape = |tracked: &Tracked| match tracked.role {
            Role::Record { values, texts, floats, fields, .. }
                if texts != 0 || floats.arguments != 0 || fields != 0 =>
            {
                let fields = tracked.filter.as_ref().map_or_else(Vec::new, |filter| filter.field_bytes());
                Some(Shape { values, texts, floats: floats.arguments, fields })
            }
            _ => None,
        };
        let shaped = self.sites.iter().filter_map(|tracked| Some((tracked, shape(tracked)?)));
        shaped.flat_map(|(tracked, shape)| tracked.counters().map(move |key| (key, shape.clone()))).collect()
    }
    /// Records that found no room. Where hits are recorded, counters hold just these.
    pub(super) fn dropped(&self) -> u64 {
        let sources = self.sites.iter().filter(|tracked| tracked.is_recorded()).flat_map(|t| &t.sources);
        let one = |source: &Source| match *source {
            Source::Counter { segment, index, .. } => {
                let segment = &self.attached.segments()[segment];
                segment.counters().read(segment.view(), index)
            }
            Source::Kernel { .. } => 0,
        };
        sources.map(one).fold(0, u64::wrapping_add)
    }
    /// What a reader should know at the end.
    pub(crate) fn record_notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let (pid, unpaired) = (self.process.pid(), self.records.pairing.unpaired);
        if unpaired > 0 {
            notices.push(format!(
                "{unpaired} returns in process {pid} were of calls whose entry was not recorded"
            ));
        }
        if self.records.broken > 0 {
            let times = self.records.broken;
            notices.push(format!(
                "process {pid} wrote over its rings of records, {times} times; what they held is lost"
            ));
        }
        notices
    }
}

impl Tracked {
    /// Segments and counters in which its hits are counted.
    pub(super) fn counters(&self) -> impl Iterator<Item = (usize, u32)> {
        self.sources.iter().filter_map(|source| match *source {
            Source::Counter { segment, index, .. } => Some((segment, index)),
            Source::Kernel { .. } => None,
        })
    }
    pub(super) const fn is_recorded(&self) -> bool {
        matches!(self.role, Role::Record { .. } | Role::RecordAt(..))
    }
}

/// What an entry's record holds: integers, and bits that say which arguments are texts and floats.
#[derive(Clone, Debug)]
struct Shape {
    values: u8,
    texts: u8,
    floats: u8,
    /// Bytes of each field.
    fields: Vec<u8>,
}

impl Shape {
    /// Texts in the order of their arguments, and floats by theirs; `word` is any word of the record.
    fn read(&self, word: &dyn Fn(u64) -> u64) -> Beside {
        let of = |mask: u8| (0..8u8).filter(move |n| mask >> n & 1 == 1);
        let text = |(nth, argument): (u64, u8)| {
            let first = FIRST_TEXT + nth * TEXT_WORDS as u64;
            Text::new(argument, |n| word(first.saturating_add(n)))
        };
        let first = first_float(self.values.into(), self.texts.count_ones() as usize);
        let mut floats = [0; 8];
        of(self.floats).zip(first..).for_each(|(vector, at)| floats[usize::from(vector)] = word(at));
        let mut at = first + u64::from(self.floats.count_ones());
        let mut fields = Vec::new();
        for (nth, &bytes) in (0..).zip(&self.fields) {
            let begin = at;
            fields.push(Text::of(nth, bytes.into(), |n| word(begin.saturating_add(n))));
            at += 1 + u64::from(bytes.div_ceil(8));
        }
        Beside { texts: (0..).zip(of(self.texts)).map(text).collect(), floats, fields }
    }
}
