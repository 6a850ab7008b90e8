//! Records read from a process' rings.
//!
//! In: the rings of all its segments. Out: [`Call`]s, and how many records were read for each site. Invariant: LOSS-2 hits are records
//! read and records dropped, to the hit. Does not: put entries and exits together (`crate::calls`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use trapline_patch::Segment;
use trapline_plan::Role;
use trapline_record::ring::{FIRST_TEXT, Kind, Record, TEXT_WORDS, first_float};

use super::{Source, Traced, Tracked};
use crate::calls::{Call, Found, Paired, Pairing, Text};
use crate::filter::Filter;
use crate::quick::Quick;
use crate::report::{Filtered, Site};
use crate::stacks::{StackId, Sums};

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Bytes taken, for each segment and ring.
    tails: Vec<Vec<u64>>,
    pub(super) pairing: Pairing,
    /// What a record's probe is; made anew when there are more.
    probes: Probes,
    /// Records of a round; empty between rounds.
    round: Vec<Found>,
    /// Entries read.
    pub(super) read: Counts,
    /// Texts and floats of entries whose calls have not been told: by segment, probe, thread, stack pointer and time.
    texts: Quick<TextKey, Beside>,
    /// Stacks of such entries.
    pub(super) stacks: Quick<TextKey, StackId>,
    /// Sums of stacks, where these are asked for.
    pub(super) sums: Option<Sums>,
    /// Entries read whose calls a filter left out.
    left_out: Counts,
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

impl Records {
    /// One round of records. What names a probe that there is none of was scribbled.
    fn take(&mut self, segments: &[Segment]) {
        let (mut round, probes) = (std::mem::take(&mut self.round), std::mem::take(&mut self.probes));
        self.drain(segments, |records, nth, _, record, word| {
            let Some(known) = probes.get(nth, record.probe) else { return };
            if record.kind == Kind::Entry {
                if let Some(shape) = &known.shape {
                    records.texts.insert(text_key(nth, record), shape.read(word));
                }
                records.read.add(nth, record.probe);
            }
            round.push(Found::new(nth, *record));
        });
        (self.round, self.probes) = (round, probes);
    }
}

/// What is known of a probe, for each of its records.
#[derive(Clone, Debug)]
struct Known {
    site: Arc<Site>,
    /// Its exits are recorded.
    waits: bool,
    shape: Option<Shape>,
    /// What the reader decides.
    late: Option<Arc<Filter>>,
}

impl Known {
    fn call(
        &self,
        pid: u32,
        Paired { entry, exit, how, .. }: Paired,
        beside: Beside,
        (start, ns_per_tick): (u64, f64),
    ) -> Call {
        let since = |ticks: u64, from: u64| {
            Duration::from_nanos((ticks.saturating_sub(from) as f64 * ns_per_tick).round() as u64)
        };
        let mut arguments = [0; 6];
        arguments.copy_from_slice(&entry.values[..6]);
        Call {
            pid,
            tid: entry.tid,
            site: Arc::clone(&self.site),
            at: since(entry.ticks, start),
            arguments,
            floats: beside.floats,
            texts: beside.texts,
            fields: beside.fields,
            returned: exit.filter(|exit| exit.kind == Kind::Return).map(|exit| exit.values[0]),
            took: exit.map(|exit| since(exit.ticks, entry.ticks)),
            how,
        }
    }
}

/// By segment and probe.
#[derive(Debug, Default)]
struct Probes {
    of: Vec<Vec<Option<Known>>>,
    are_named: bool,
    /// How many sites and sources there were.
    version: (usize, usize),
}

impl Probes {
    fn get(&self, segment: usize, probe: u32) -> Option<&Known> {
        self.of.get(segment)?.get(probe as usize)?.as_ref()
    }
}

/// Numbers by segment and probe, of probes that there are.
#[derive(Debug, Default)]
pub(super) struct Counts(Vec<Vec<u64>>);

impl Counts {
    pub(super) fn add(&mut self, segment: usize, probe: u32) {
        *place(&mut self.0, segment, probe) += 1;
    }
    pub(super) fn get(&self, segment: usize, probe: u32) -> u64 {
        self.0.get(segment).and_then(|of| of.get(probe as usize)).copied().unwrap_or(0)
    }
}

/// The place for that, which is made if need be.
fn place<T: Default>(of: &mut Vec<Vec<T>>, segment: usize, probe: u32) -> &mut T {
    let probe = probe as usize;
    if of.len() <= segment {
        of.resize_with(segment + 1, Vec::new);
    }
    let of = &mut of[segment];
    if of.len() <= probe {
        of.resize_with(probe + 1, T::default);
    }
    &mut of[probe]
}

impl Traced {
    /// What was recorded since the last call; with `last` also what has not ended. `clock` is the tick at which time begins, and how long one is.
    /// How many records that were.
    pub(crate) fn each_call(&mut self, clock: (u64, f64), last: bool, each: &mut dyn FnMut(Call)) -> usize {
        if self.records.sums.is_some() {
            self.sum_stacks(last);
            return 0;
        }
        self.know_probes();
        let mut records = std::mem::take(&mut self.records);
        records.take(self.attached.segments());
        let taken = records.round.len();
        if records.probes.are_named {
            // An exit is of a thread whose entry was read before or is beside it.
            let threads = records.round.iter().map(|found| found.record.tid).collect();
            self.names.look(self.process.pid(), &self.children, &threads, false);
        }
        records.pairing.exits_name_no_thread = self.attached.asks_for_thread();
        let Records { pairing, round, probes, texts, left_out, .. } = &mut records;
        let (pid, names) = (self.process.pid(), &self.names);
        let mut tell = |paired: Paired| {
            let (segment, probe) = (paired.segment, paired.entry.probe);
            let Some(known) = probes.get(segment, probe) else { return };
            let beside = known.shape.as_ref().and_then(|_| texts.remove(&text_key(segment, &paired.entry)));
            let call = known.call(pid, paired, beside.unwrap_or_default(), clock);
            let passes = |filter: &Filter| {
                let comm = if filter.is_named() { names.get(call.tid).comm } else { None };
                filter.passes(&call, comm.as_deref())
            };
            match known.late.as_deref().is_none_or(passes) {
                true => each(call),
                false => left_out.add(segment, probe),
            }
        };
        let waits = |segment, probe| probes.get(segment, probe).is_some_and(|known| known.waits);
        pairing.feed(round, waits, &mut tell);
        if last {
            pairing.rest().into_iter().for_each(&mut tell);
        }
        self.records = records;
        taken
    }
    /// What is known of the probes whose records come, if there are new ones.
    fn know_probes(&mut self) {
        let version = (self.sites.len(), self.sites.iter().map(|tracked| tracked.sources.len()).sum());
        if self.records.probes.version == version {
            return;
        }
        let mut probes = Probes { version, ..Probes::default() };
        for tracked in &self.sites {
            let late = tracked.filter.clone().filter(|filter| filter.is_late());
            probes.are_named |= late.as_ref().is_some_and(|filter| filter.is_named());
            for (segment, probe) in tracked.counters() {
                let known = Known {
                    site: Arc::clone(&tracked.site),
                    waits: matches!(tracked.role, Role::Record { returns: true, .. }),
                    shape: Shape::of(tracked),
                    late: late.clone(),
                };
                *place(&mut probes.of, segment, probe) = Some(known);
            }
        }
        self.records.probes = probes;
    }
    /// The name of a thread by the number in its records.
    pub(crate) fn thread_name(&mut self, tid: u32) -> Option<String> {
        self.names.look(self.process.pid(), &self.children, &std::iter::once(tid).collect(), false);
        self.names.get(tid).comm
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
            filtered.by_reader += self.records.left_out.get(nth, probe);
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
    /// Of a probe whose records hold anything else than integers.
    fn of(tracked: &Tracked) -> Option<Self> {
        match tracked.role {
            Role::Record { values, texts, floats, fields, .. }
                if texts != 0 || floats.arguments != 0 || fields != 0 =>
            {
                let fields = tracked.filter.as_ref().map_or_else(Vec::new, |filter| filter.field_bytes());
                Some(Self { values, texts, floats: floats.arguments, fields })
            }
            _ => None,
        }
    }
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
