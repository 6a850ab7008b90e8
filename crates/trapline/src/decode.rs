//! Decodes ring slots into calls.
//!
//! In: ring slots of a process, round by round: as they are taken ([`crate::traced`]), or as they were saved
//! ([`crate::saved`]). Out: [`Call`]s, and how many entries were read for each probe. Invariant: DEC-1 the
//! same slots, probes and clock give the same calls, wherever they come from. Slots are untrusted input
//! (REC-2): a slot with a kind or a probe that does not exist was overwritten by the target, and is skipped.
//! Does not: take slots.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use trapline_record::calls::{Behind, CallRecord};
use trapline_record::ring::{
    FIRST_TEXT, FIRST_VALUE, MAX_VALUES, Record, RecordKind, TEXT_WORDS, first_float,
};

use crate::calls::{Call, CallEnd, FloatArguments, OPERANDS, Results, Text};
use crate::filter::Filter;
use crate::pairing::{FoundRecord, Paired, Pairing};
use crate::quick::InTurn;
use crate::report::Site;
use crate::values::Values;

/// Records of one process, until they are calls.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    pub(crate) pairing: Pairing,
    /// What is known of each probe.
    pub(crate) probes: Probes,
    /// Records that were taken and not reported yet.
    pub(crate) round: Vec<FoundRecord>,
    /// Entries read, by probe.
    pub(crate) read: Counts,
    /// Entries read of calls that a filter rejected, by probe.
    pub(crate) left_out: Counts,
    /// Texts and floats of entries of calls that were not reported yet; by segment, probe, thread, stack
    /// pointer and time.
    texts: InTurn<TextKey, Beside>,
}

/// Tick at which time begins, and nanoseconds per tick.
pub(crate) type Clock = (u64, f64);

impl Decoder {
    /// Takes ring slots of `slot` bytes each from one ring of a segment. Returns how many of them are
    /// records.
    pub(crate) fn take(&mut self, segment: usize, slot: usize, slots: &[u8]) -> usize {
        let before = self.round.len();
        let room = (slot / 8).saturating_sub(FIRST_VALUE as usize);
        for bytes in slots.chunks_exact(slot) {
            let word = |n: u64| word(bytes, n);
            let Some(record) = Record::read(room, word) else { continue };
            let Some(known) = self.probes.get(segment, record.probe) else { continue };
            if record.kind == RecordKind::Entry {
                if let Some(shape) = &known.shape {
                    self.texts.insert(text_key(segment, &record), shape.read(&word));
                }
                self.read.add(segment, record.probe, 1);
            }
            self.round.push(FoundRecord::new(segment, record));
        }
        self.round.len() - before
    }
    /// Threads of a round, by the numbers in their records.
    pub(crate) fn threads(&self) -> HashSet<u32> {
        self.round.iter().map(|found| found.record.tid).collect()
    }
    /// Reports the calls that ended in a round; `begun` is the tick at which it began ([`Pairing::feed`]).
    /// Without it, reports all calls, including those that have not ended. `names` looks up thread names.
    pub(crate) fn report(
        &mut self,
        pid: u32,
        clock: Clock,
        begun: Option<u64>,
        names: &dyn Fn(u32) -> Option<String>,
        each: &mut dyn FnMut(Call),
    ) {
        let Self { pairing, round, probes, texts, left_out, .. } = self;
        let mut report = |paired: Paired| {
            let (segment, probe) = (paired.segment, paired.entry.probe);
            let Some(known) = probes.get(segment, probe) else { return };
            // A call that is announced at its entry is reported again at its end.
            let comes_again = paired.how == CallEnd::Entered && known.waits;
            let key = text_key(segment, &paired.entry);
            let beside = known.shape.as_ref().and_then(|_| match comes_again {
                true => texts.first(&key).cloned(),
                false => texts.remove(&key),
            });
            let mut call = known.call(pid, paired, beside.unwrap_or_default(), clock);
            known.values.finish(&mut call);
            let passes = |filter: &Filter| {
                let comm = if filter.is_named() { names(call.tid) } else { None };
                filter.passes(&call, comm.as_deref())
            };
            match known.late.as_deref().is_none_or(passes) {
                true => each(call),
                false => left_out.add(segment, probe, 1),
            }
        };
        let waits = |segment, probe| probes.get(segment, probe).is_some_and(|known| known.waits);
        pairing.feed(round, begun, waits, &mut report);
        if begun.is_none() {
            pairing.rest().into_iter().for_each(&mut report);
        }
    }
}

/// A word of a ring slot; 0 beyond its end.
pub(crate) fn word(slot: &[u8], n: u64) -> u64 {
    let at = usize::try_from(n.saturating_mul(8)).ok();
    let bytes = at.and_then(|at| slot.get(at..at.checked_add(8)?));
    bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// What an entry's record holds besides integers.
#[derive(Clone, Debug, Default)]
struct Beside {
    texts: Vec<Text>,
    floats: [u64; 8],
    fields: Vec<Text>,
    kept: Vec<Text>,
}

pub(crate) type TextKey = (usize, u32, u32, u64, u64);

pub(crate) const fn text_key(segment: usize, record: &Record) -> TextKey {
    (segment, record.probe, record.tid, record.sp, record.ticks)
}

/// What is known of a probe; needed for each of its records.
#[derive(Clone, Debug)]
pub(crate) struct ProbeFacts {
    pub(crate) site: Arc<Site>,
    /// Its exits are recorded, so entries wait for them.
    pub(crate) waits: bool,
    pub(crate) shape: Option<Shape>,
    /// What the records of its returns hold.
    pub(crate) results: Results,
    pub(crate) values: Values,
    /// It is a library's, and calls are reported only if they come from the program.
    pub(crate) is_libcall: bool,
    /// The reader's part of the filter.
    pub(crate) late: Option<Arc<Filter>>,
}

impl ProbeFacts {
    /// What is behind an entry in a compact ring, if there are values.
    pub(crate) fn behind(&self) -> Behind {
        self.shape.as_ref().map_or_else(Behind::default, Shape::behind)
    }
    /// The call that began by an entry in a compact ring, with the values behind that. `None` if nobody asked for them, or if they
    /// are not there.
    pub(crate) fn entered(&self, pid: u32, entry: CallRecord, values: &[u64], clock: Clock) -> Option<Call> {
        let shape = self.shape.as_ref()?;
        let (values, texts) = values.split_at_checked(shape.behind().fixed.into())?;
        let texts = shape.packed_texts(texts)?;
        let word = |n: u64| shape.place(n).and_then(|at| values.get(at)).copied().unwrap_or(0);
        let CallRecord { kind, probe, tid, ticks, .. } = entry;
        let mut record = Record { kind, probe, tid, ticks, sp: 0, values: [0; MAX_VALUES] };
        record.values.iter_mut().zip(FIRST_VALUE..).for_each(|(value, n)| *value = word(n));
        let paired = Paired { segment: 0, entry: record, exit: None, how: CallEnd::Entered };
        let beside = Beside { texts, ..shape.read(&word) };
        let mut call = self.call(pid, paired, beside, clock);
        self.values.finish(&mut call);
        Some(call)
    }
    fn call(
        &self,
        pid: u32,
        Paired { entry, exit, how, .. }: Paired,
        beside: Beside,
        (start, ns_per_tick): Clock,
    ) -> Call {
        let since_start = |ticks: u64| {
            Duration::from_nanos((ticks.saturating_sub(start) as f64 * ns_per_tick).round() as u64)
        };
        let at = since_start(entry.ticks);
        let mut arguments = [0; OPERANDS];
        arguments[..6].copy_from_slice(&entry.values[..6]);
        Call {
            pid,
            tid: entry.tid,
            site: Arc::clone(&self.site),
            at,
            arguments,
            unseen: 0,
            float_arguments: FloatArguments::default(),
            floats: beside.floats,
            texts: beside.texts,
            fields: beside.fields,
            kept: beside.kept,
            returned: exit.filter(|exit| exit.kind == RecordKind::Return).map(|exit| exit.values[0]),
            results: match (exit.filter(|exit| exit.kind == RecordKind::Return), self.results) {
                (Some(exit), results) if results != Results::INTEGER => {
                    exit.values.into_iter().take(results.words()).collect()
                }
                _ => Vec::new(),
            },
            // A difference of times as they are reported, so that rounding lets no call end after its caller.
            took: exit.map(|exit| since_start(exit.ticks).saturating_sub(at)),
            how,
            stack: None,
        }
    }
}

/// Probes by segment and number. A recording may leave out as many numbers as it likes, so each costs one word only.
#[derive(Debug, Default)]
pub(crate) struct Probes(Vec<Vec<Option<Box<ProbeFacts>>>>);

impl Probes {
    /// Adds one.
    pub(crate) fn set(&mut self, segment: usize, probe: u32, known: ProbeFacts) {
        *place(&mut self.0, segment, probe) = Some(Box::new(known));
    }
    /// Changes all of them.
    pub(crate) fn each_mut(&mut self, mut each: impl FnMut(&mut ProbeFacts)) {
        self.0.iter_mut().flatten().flatten().for_each(|known| each(known));
    }
    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, u32, &ProbeFacts)> {
        self.0.iter().enumerate().flat_map(|(segment, of)| {
            (0..).zip(of).filter_map(move |(probe, known)| Some((segment, probe, known.as_deref()?)))
        })
    }
    /// One more than the highest number in a segment.
    pub(crate) fn len_of(&self, segment: usize) -> usize {
        self.0.get(segment).map_or(0, Vec::len)
    }
    pub(crate) fn get(&self, segment: usize, probe: u32) -> Option<&ProbeFacts> {
        self.0.get(segment)?.get(probe as usize)?.as_deref()
    }
}

/// A number for each probe, by segment.
#[derive(Debug, Default)]
pub(crate) struct Counts(Vec<Vec<u64>>);

impl Counts {
    pub(crate) fn add(&mut self, segment: usize, probe: u32, more: u64) {
        *place(&mut self.0, segment, probe) += more;
    }
    /// Those of a segment, for so many probes at least.
    pub(crate) fn of(&mut self, segment: usize, probes: usize) -> &mut [u64] {
        if let Some(last) = u32::try_from(probes).ok().and_then(|probes| probes.checked_sub(1)) {
            place(&mut self.0, segment, last);
        }
        self.0.get_mut(segment).map_or(&mut [], Vec::as_mut_slice)
    }
    /// All of them, by segment and probe.
    pub(crate) fn all(&self) -> &[Vec<u64>] {
        &self.0
    }
    pub(crate) fn sum(&self) -> u64 {
        self.0.iter().flatten().fold(0, |sum, one| sum.wrapping_add(*one))
    }
    pub(crate) fn get(&self, segment: usize, probe: u32) -> u64 {
        self.0.get(segment).and_then(|of| of.get(probe as usize)).copied().unwrap_or(0)
    }
}

/// Entry of the table for this probe; added if it is missing.
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

/// What an entry's record holds: how many integers, and bits that show which arguments are texts and floats.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) values: u8,
    pub(crate) texts: u8,
    pub(crate) floats: u8,
    /// Bytes of each field.
    pub(crate) fields: Vec<u8>,
    /// Bytes of each text that calls keep for their return.
    pub(crate) kept: Vec<u16>,
}

impl Shape {
    /// What is behind an entry in a compact ring: what a slot has, without the places that it leaves empty; texts come last.
    pub(crate) fn behind(&self) -> Behind {
        let fields = self.fields.iter().map(|&bytes| 1 + usize::from(bytes).div_ceil(8)).sum::<usize>();
        let fixed = usize::from(self.values) + self.floats.count_ones() as usize + fields;
        Behind { fixed: u16::try_from(fixed).unwrap_or(u16::MAX), texts: self.texts.count_ones() as u8 }
    }
    /// Which of the words before the texts a word of a slot is.
    fn place(&self, n: u64) -> Option<usize> {
        let (values, first) = (u64::from(self.values), FIRST_VALUE + u64::from(self.values));
        let behind = first_float(self.values.into(), self.texts.count_ones() as usize);
        let at = if n < first { n.checked_sub(FIRST_VALUE)? } else { values + n.checked_sub(behind)? };
        usize::try_from(at).ok()
    }
    /// The texts behind an entry in a compact ring. `None` if there are not as many, or more than texts.
    fn packed_texts(&self, mut words: &[u64]) -> Option<Vec<Text>> {
        let arguments = (0..8u8).filter(|n| self.texts >> n & 1 == 1);
        let texts: Option<Vec<Text>> = arguments
            .map(|argument| {
                let (text, rest) = Text::packed(argument, words)?;
                words = rest;
                Some(text)
            })
            .collect();
        texts.filter(|_| words.is_empty())
    }
    /// Reads texts and floats, each in the order of their arguments. `word` gives any word of the record.
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
        let mut kept = Vec::new();
        for (nth, &bytes) in (0..).zip(&self.kept) {
            let begin = at;
            kept.push(Text::of(nth, bytes.into(), |n| word(begin.saturating_add(n))));
            at += 1 + u64::from(bytes.div_ceil(8));
        }
        Beside { texts: (0..).zip(of(self.texts)).map(text).collect(), floats, fields, kept }
    }
}
