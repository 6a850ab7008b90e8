//! Takes records out of a process' rings.
//!
//! In: the rings of all its segments. Out: [`Call`]s, and how many records were read for each site.
//! Invariant: LOSS-2: hits = records read + records dropped, exactly. Does not: know what records mean
//! (`crate::decode`), or save them (`saving`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use trapline_patch::Segment;
use trapline_plan::Action;
use trapline_record::counters::filtered;
use trapline_record::ring::{Record, RingArea};
use trapline_record::view::View;

use super::saving::Saved;
use super::{Source, Traced, Tracked};
use crate::calls::{Call, unpaired_notice};
use crate::decode::{Clock, Decoder, ProbeFacts, Probes, Shape, TextKey};
use crate::filter::Filter;
use crate::quick::InTurn;
use crate::report::Filtered;
use crate::stacks::{StackId, Sums};
use crate::threads::are_renumbered;
use crate::values::Values;

/// State of reading.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Bytes taken so far, for each segment and ring.
    tails: Vec<Vec<u64>>,
    pub(super) decoder: Decoder,
    /// Number of sites and of sources when the decoder was last given its probes.
    version: (usize, usize),
    /// A filter of the reader's needs thread names.
    are_named: bool,
    /// Ring slots of one ring; empty between rounds.
    bytes: Vec<u8>,
    /// Stacks of entries whose calls have not ended.
    pub(super) stacks: InTurn<TextKey, StackId>,
    /// Sums of stacks, if requested.
    pub(super) sums: Option<Sums>,
    /// State of the recording.
    pub(super) saved: Saved,
    /// When page notes were last cleared.
    forgot: Option<Instant>,
    /// Ring heads with impossible values: the target wrote over them.
    pub(super) broken: u64,
}

/// How long stubs load from a page after the kernel has read it, before the kernel is asked again.
const FORGET: Duration = Duration::from_millis(100);
/// Bytes of a ring that are copied at once: few enough to stay in the CPU's own cache until they are read.
const AT_ONCE: usize = 1 << 18;

/// One ring, to be emptied.
#[derive(Debug)]
pub(super) struct Ring<'a> {
    pub(super) segment: usize,
    pub(super) number: u32,
    area: RingArea,
    view: View<'a>,
    tail: &'a mut u64,
}

impl Ring<'_> {
    /// Bytes of a ring slot.
    pub(super) const fn slot(&self) -> usize {
        self.area.slot as usize
    }
    /// Takes what is in the ring now, in pieces that are appended to `bytes`. `each` gets all of `bytes`, and
    /// then they are cleared. Returns false if the head has an impossible value.
    pub(super) fn empty<E>(
        &mut self,
        bytes: &mut Vec<u8>,
        mut each: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let Ok(ahead) = self.area.ahead(self.view, self.number, self.tail) else { return Ok(false) };
        let (before, mut rest) = (bytes.len(), ahead as usize);
        while rest > 0 {
            let piece = rest.min(AT_ONCE.max(self.slot()));
            bytes.resize(before + piece, 0);
            self.area.take_bytes(self.view, self.number, self.tail, &mut bytes[before..]);
            rest -= piece;
            let done = each(bytes);
            bytes.truncate(before);
            done?;
        }
        Ok(true)
    }
}

impl Records {
    /// Clears page notes from time to time, where no rings are read.
    pub(super) fn forget(&mut self, segments: &[Segment]) {
        if self.forgot.is_none_or(|at| at.elapsed() >= FORGET) {
            self.forgot = Some(Instant::now());
            segments.iter().for_each(|home| home.layout().pages.forget(home.view()));
        }
    }
    /// Visits all rings, one after the other, and does what else belongs to a round.
    fn rings<E>(
        &mut self,
        segments: &[Segment],
        mut each: impl FnMut(&mut Self, Ring<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let forgets = self.forgot.is_none_or(|at| at.elapsed() >= FORGET);
        if forgets {
            self.forgot = Some(Instant::now());
        }
        for (segment, home) in segments.iter().enumerate() {
            let (area, view) = (home.rings(), home.view());
            if self.tails.len() == segment {
                self.tails.push(vec![0; area.rings as usize]);
            }
            let mut tails = std::mem::take(&mut self.tails[segment]);
            let mut rings = (0..).zip(&mut tails);
            let done =
                rings.try_for_each(|(number, tail)| each(self, Ring { segment, number, area, view, tail }));
            self.tails[segment] = tails;
            done?;
            if forgets {
                home.layout().pages.forget(view);
            }
        }
        Ok(())
    }
    /// Takes what is in all rings: each record with its segment, the number of words that a record has there,
    /// and access to them.
    pub(super) fn drain(
        &mut self,
        segments: &[Segment],
        mut each: impl FnMut(&mut Self, usize, u64, &Record, &dyn Fn(u64) -> u64),
    ) {
        let done = self.rings(segments, |records, ring| {
            let Ring { segment, number, area, view, tail } = ring;
            let room = u64::from(area.most) / 8;
            let each =
                |record: &Record, word: &dyn Fn(u64) -> u64| each(records, segment, room, record, word);
            let taken = area.take_words(view, number, tail, each);
            records.broken += u64::from(taken.is_err());
            Ok::<(), Never>(())
        });
        let Ok(()) = done;
    }
    /// Reads one round of records; returns how many.
    fn take(&mut self, segments: &[Segment]) -> usize {
        let mut taken = 0;
        let done = self.rings(segments, |records, mut ring| {
            let (segment, slot) = (ring.segment, ring.slot());
            let Self { decoder, bytes, .. } = records;
            let whole = ring.empty(bytes, |slots| {
                taken += decoder.take(segment, slot, slots);
                Ok::<(), Never>(())
            })?;
            records.broken += u64::from(!whole);
            Ok::<(), Never>(())
        });
        let Ok(()) = done;
        taken
    }
    /// Visits the rings where slots are not decoded here. `each` empties a ring, and returns whether its head
    /// is possible.
    pub(super) fn hand_on<E>(
        &mut self,
        segments: &[Segment],
        mut each: impl FnMut(&mut Self, Ring<'_>) -> Result<bool, E>,
    ) -> Result<(), E> {
        self.rings(segments, |records, ring| {
            let whole = each(records, ring)?;
            records.broken += u64::from(!whole);
            Ok(())
        })
    }
}

/// Error type of what cannot fail.
pub(super) type Never = std::convert::Infallible;

impl Traced {
    /// Reads a round and reports calls. With `until`, the tick at which the round begins, these are the calls
    /// that ended before the round before it. Without it, these are all calls, including those that have not
    /// ended. Returns the number of records taken.
    pub(crate) fn each_call(
        &mut self,
        clock: Clock,
        until: Option<u64>,
        each: &mut dyn FnMut(Call),
    ) -> usize {
        let is_last = self.is_last_round();
        let until = until.filter(|_| !is_last);
        if self.records.sums.is_some() {
            self.sum_stacks(until.is_none());
            return 0;
        }
        self.know_probes();
        self.read_names();
        let mut records = std::mem::take(&mut self.records);
        let taken = records.take(self.attached.segments());
        let is_renumbered = are_renumbered(self.process.pid());
        if records.are_named || is_renumbered {
            // An exit is on a thread whose entry was read before, or is in the same round.
            let threads = records.decoder.threads();
            self.names.look(self.process.pid(), &self.children, &threads, false);
            self.note_names(&threads);
        }
        let names = |tid| self.names.get(tid).comm;
        // Reports name threads by the numbers that the tracer sees.
        let mut report = |call: Call| {
            let tid = if is_renumbered { self.names.get(call.tid).tid } else { call.tid };
            each(Call { tid, ..call });
        };
        records.decoder.report(self.process.pid(), clock, until, &names, &mut report);
        self.records = records;
        taken
    }
    /// Gives the decoder what is known of the probes, if there are new ones. Returns whether there are.
    pub(super) fn know_probes(&mut self) -> bool {
        let version = (self.sites.len(), self.sites.iter().map(|tracked| tracked.sources.len()).sum());
        // A goroutine may have moved to another thread.
        self.records.decoder.pairing.exits_name_no_thread = self.is_go || self.attached.asks_for_thread();
        if self.records.version == version {
            return false;
        }
        let (mut probes, mut are_named) = (Probes::default(), false);
        for tracked in &self.sites {
            let left = |filter: &Arc<Filter>| filter.left_to_reader(tracked.action, self.returns_decide());
            let of_calls = |filter: &Arc<Filter>| Filter::clone(filter).by_reader();
            let late = match (&tracked.values, &tracked.asked) {
                (Values::Marked(_), asked) => asked.as_ref().map(of_calls),
                _ => tracked.filter.as_ref().map(left),
            };
            let late = late.filter(|filter| filter.is_late()).map(Arc::new);
            are_named |= late.as_ref().is_some_and(|filter| filter.is_named());
            for (segment, probe) in tracked.counters() {
                let known = ProbeFacts {
                    site: Arc::clone(&tracked.site),
                    waits: matches!(tracked.action, Action::Record { returns: true, .. }),
                    shape: tracked.shape(),
                    values: tracked.values.clone(),
                    late: late.clone(),
                };
                probes.set(segment, probe, known);
            }
        }
        self.records.decoder.probes = probes;
        self.records.version = version;
        self.records.are_named = are_named;
        true
    }
    /// Name of a thread. `tid` is the number that the tracer sees.
    pub(crate) fn thread_name(&mut self, tid: u32) -> Option<String> {
        let tid = self.names.seen(tid).unwrap_or(tid);
        self.names.look(self.process.pid(), &self.children, &std::iter::once(tid).collect(), false);
        self.names.get(tid).comm
    }
    /// Hits of a site that were filtered.
    pub(super) fn filtered(&self, tracked: &Tracked) -> Option<Filtered> {
        tracked.filter.as_ref().filter(|filter| {
            filter.rejects() || filter.tallied().is_none() && !filter.only_reads() || filter.tallies_calls()
        })?;
        let mut out = Filtered::default();
        for (nth, probe) in tracked.counters() {
            let segment = &self.attached.segments()[nth];
            let words = segment.filtered();
            if !words.is_empty() {
                let word = |nth| words.read(segment.view(), filtered::WORDS * probe + nth);
                let late = word(filtered::REJECTED_LATE);
                out.in_target += word(filtered::REJECTED) + late;
                let begun = word(filtered::BEGUN);
                let ended = late
                    + self.records.decoder.read.get(nth, probe)
                    + segment.counters().read(segment.view(), probe);
                out.unended += begun.saturating_sub(ended);
            }
            out.by_reader += self.records.decoder.left_out.get(nth, probe);
        }
        if matches!(tracked.action, Action::Tally { .. }) {
            let by = self.rows_by();
            let contents = self.aggregated_of(tracked, by);
            let (_, left) = self.parts(tracked, &contents, by);
            out.by_reader += left.others + left.unnamed;
            out.unended = out.unended.saturating_sub(contents.sum());
        }
        Some(out)
    }
    /// Filtered hits of all sites.
    pub(crate) fn all_filtered(&self) -> Option<Filtered> {
        let all = self.sites.iter().filter_map(|tracked| self.filtered(tracked));
        all.reduce(|sum, one| Filtered {
            in_target: sum.in_target + one.in_target,
            by_reader: sum.by_reader + one.by_reader,
            unended: sum.unended + one.unended,
        })
    }
    /// Records that were dropped. Where hits are recorded, counters hold just these.
    pub(super) fn dropped(&self) -> u64 {
        let recorded = self.sites.iter().filter(|tracked| tracked.is_recorded() || tracked.tallies_calls());
        let sources = recorded.flat_map(|tracked| &tracked.sources);
        let one = |source: &Source| match *source {
            Source::Counter { segment, index, .. } => {
                let segment = &self.attached.segments()[segment];
                segment.counters().read(segment.view(), index)
            }
            Source::Kernel { .. } => 0,
        };
        sources.map(one).fold(0, u64::wrapping_add)
    }
    /// Notices about records for the end of the session.
    pub(crate) fn record_notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let (pid, unpaired) = (self.process.pid(), self.records.decoder.pairing.unpaired);
        notices.extend(unpaired_notice(pid, unpaired));
        if self.records.broken > 0 {
            let times = self.records.broken;
            notices.push(format!(
                "process {pid} wrote over its rings of records, {times} times; what they held is lost"
            ));
        }
        notices.extend(self.loads.late().iter().flat_map(|late| late.lines(pid)));
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
    /// Whether its values are aggregated at returns, from what the entry left.
    pub(super) fn tallies_calls(&self) -> bool {
        self.filter.as_ref().is_some_and(|filter| filter.tallies_calls())
    }
    pub(super) const fn is_recorded(&self) -> bool {
        matches!(self.action, Action::Record { .. } | Action::RecordAt(..) | Action::RecordMark(..))
    }
    /// Shape of its records, if they hold anything besides integers.
    fn shape(&self) -> Option<Shape> {
        match self.action {
            Action::Record { values, texts, floats, fields, .. }
                if texts != 0 || floats.arguments != 0 || fields != 0 =>
            {
                let fields = self.filter.as_ref().map_or_else(Vec::new, |filter| filter.field_bytes());
                Some(Shape { values, texts, floats: floats.arguments, fields })
            }
            Action::RecordMark(_, 1..) => {
                let fields = self.filter.as_ref().map_or_else(Vec::new, |filter| filter.field_bytes());
                Some(Shape { values: 6, texts: 0, floats: 0, fields })
            }
            _ => None,
        }
    }
}
