//! Reads a process' records: as calls, as bytes to be saved, or as sums of stacks.
//!
//! In: rings, and what is known of the probes. Out: [`Call`]s; blocks of a recording (`saving`); stacks
//! (`stack_reader`). Invariant: LOSS-2: each record is read once, and counted with its probe. Does not:
//! decide which of the three a session reads.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_patch::{Attached, PatchError, Segment, Waiting};
use trapline_tracee::TickClock;

use super::rings::{Never, Rings};
use super::saving::Saver;
use super::site_table::SiteTable;
use super::stack_reader::StackReader;
use super::target_process::TargetProcess;
use super::thinning::{Decision, Thinning, Window};
use super::thread_names::ThreadNames;
use crate::calls::Call;
use crate::decode::{Clock, Decoder, Probes};
use crate::pairing::unpaired_notice;
use crate::procfs::cpu_time;
use crate::saved::tables::{TakenOut, TakenProbe};
use crate::threads::are_renumbered;

/// How often it is asked how long a process has run.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// State of reading.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) rings: Rings,
    pub(super) decoder: Decoder,
    /// Number of sites and of sources when the decoder was last given its probes.
    version: (usize, usize),
    /// A filter of the reader's needs thread names.
    are_named: bool,
    /// Ring slots of one ring; empty between rounds.
    bytes: Vec<u8>,
    /// Stacks, if they are summed.
    pub(super) stacks: Option<StackReader>,
    /// State of the recording.
    saver: Saver,
    /// How often a thread waited as long as the bound, and then no thread did.
    given_up: u64,
    /// Whether the process' end was noted.
    ended: bool,
    /// What the recording costs, if it has a budget, and when that was last looked at.
    thinning: Option<(Thinning, Instant)>,
}

impl Recorder {
    /// Gives the decoder what is known of the probes, if there are new ones. Returns whether there are.
    fn know_probes(&mut self, target: &TargetProcess, sites: &SiteTable, attached: &Attached) -> bool {
        self.note_exits(target, attached);
        let version = sites.version();
        if self.version == version {
            return false;
        }
        let is_compact = attached.segments().iter().any(|segment| segment.rings().is_compact());
        let (mut probes, mut are_named) = (Probes::default(), false);
        for tracked in sites.iter() {
            let facts = tracked.facts(target.returns_decide(), is_compact);
            are_named |= facts.late.as_ref().is_some_and(|filter| filter.is_named());
            tracked.counters().for_each(|(segment, probe)| probes.set(segment, probe, facts.clone()));
        }
        self.decoder.probes = probes;
        self.version = version;
        self.are_named = are_named;
        true
    }
    /// Notes whether exits name their thread. A goroutine may have moved to another one.
    fn note_exits(&mut self, target: &TargetProcess, attached: &Attached) {
        self.decoder.pairing.exits_name_no_thread = target.is_go || attached.asks_for_thread();
    }
    /// Whether entries are reported when they happen too.
    pub(super) const fn announce_entries(&mut self, announces: bool) {
        self.decoder.pairing.announces = announces;
    }
    /// Reads one round of records; returns how many.
    fn take(&mut self, segments: &[Segment]) -> usize {
        let Self { rings, decoder, bytes, .. } = self;
        let mut taken = 0;
        let done = rings.each(segments, |mut ring| {
            let (segment, slot) = (ring.segment, ring.slot());
            ring.empty(bytes, |slots| {
                taken += decoder.take(segment, slot, slots);
                Ok::<(), Never>(())
            })
        });
        let Ok(()) = done;
        taken
    }
    /// Reads a round and reports calls. With `until`, the tick at which the round begins, these are the calls
    /// that ended before the round before it. Without it, these are all calls, including those that have not
    /// ended. Returns the number of records taken.
    pub(super) fn each_call(
        &mut self,
        target: &TargetProcess,
        sites: &mut SiteTable,
        attached: &Attached,
        names: &mut ThreadNames,
        (clock, until): (Clock, Option<u64>),
        each: &mut dyn FnMut(Call),
    ) -> usize {
        self.know_probes(target, sites, attached);
        names.read(target, sites, attached);
        let taken = self.take(attached.segments());
        let is_renumbered = are_renumbered(target.pid());
        if self.are_named || is_renumbered {
            // An exit is on a thread with an entry that was read before, or is in the same round.
            let threads: HashSet<u32> = self.decoder.threads();
            names.look(target, &threads, false);
            names.note(&threads, attached.segments());
        }
        let comm = |tid| names.get(tid).comm;
        // Reports name threads by the numbers that the tracer sees.
        let mut report = |call: Call| {
            let tid = if is_renumbered { names.get(call.tid).tid } else { call.tid };
            each(Call { tid, ..call });
        };
        self.decoder.report(target.pid(), clock, until, &comm, &mut report);
        taken
    }
    /// Sums the stacks that were recorded since the last call; without `until`, also calls that have not ended. Where
    /// entries are announced, reports each of them, and returns how many.
    pub(super) fn sum_stacks(
        &mut self,
        target: &TargetProcess,
        sites: &SiteTable,
        attached: &Attached,
        names: &mut ThreadNames,
        (clock, until): (Clock, Option<u64>),
        each: &mut dyn FnMut(Call),
    ) -> usize {
        self.note_exits(target, attached);
        let Self { rings, decoder, stacks: Some(stacks), .. } = self else { return 0 };
        let mut hits = decoder.pairing.announces.then(Vec::new);
        stacks.read(
            &target.process,
            sites,
            attached.segments(),
            (rings, decoder),
            (until.is_none(), &mut hits),
        );
        let hits = hits.unwrap_or_default();
        let is_renumbered = are_renumbered(target.pid());
        if is_renumbered {
            let threads: HashSet<u32> = hits.iter().map(|hit| hit.tid).collect();
            names.look(target, &threads, false);
            names.note(&threads, attached.segments());
        }
        let count = hits.len();
        for hit in hits {
            let tid = if is_renumbered { names.get(hit.tid).tid } else { hit.tid };
            each(hit.call(target.pid(), tid, clock));
        }
        count
    }
    /// Writes what was recorded since the last call, and what is needed to read it. `next` is the number for
    /// the next process that appears in the file. `waits`: threads may wait for room. Returns the number of records.
    pub(super) fn save<E>(
        &mut self,
        target: &TargetProcess,
        sites: &SiteTable,
        attached: &Attached,
        names: &mut ThreadNames,
        (next, last, waits): (&mut u32, bool, bool),
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let more = self.know_probes(target, sites, attached);
        // Without a site there is nothing to save yet.
        let Some(number) = self.saver.number(more, next) else { return Ok(0) };
        if waits && !last {
            self.let_wait(attached.segments());
        }
        let Self { rings, decoder, saver, .. } = self;
        if more {
            Saver::write_probes(number, target, decoder, write)?;
        }
        let taken = saver.save_rings(number, attached.segments(), rings, decoder, write)?;
        saver.save_names(number, target, names, write)?;
        saver.save_losses(number, sites, attached, last, write)?;
        Ok(taken)
    }
    /// Takes functions out if recording cost more than its budget, a share of the process' time. Returns the number of the process in
    /// the file, and what was taken out.
    pub(super) fn thin(
        &mut self,
        target: &TargetProcess,
        attached: &mut Attached,
        (budget, ns_per_tick): (f64, f64),
    ) -> Option<Result<(u32, TakenOut), PatchError>> {
        let Self { saver, decoder, thinning, .. } = self;
        let (number, now) = (saver.numbered()?, Instant::now());
        let sample = saver.sample.get_or_insert_default();
        sample.end_round();
        let (thinning, looked) = thinning.get_or_insert_with(|| (Thinning::new(budget), now));
        if now.duration_since(*looked) < LOOK_EVERY {
            return None;
        }
        *looked = now;
        let of_children = target.children.iter().filter_map(|child| cpu_time(*child)).sum::<Duration>();
        let (cpu, calls) = thinning.window(cpu_time(target.pid())? + of_children, decoder.read.all())?;
        let record = Duration::from_nanos((sample.take_ticks()? * ns_per_tick).round() as u64);
        let may = |probe: &(usize, u32)| {
            let ends = decoder.probes.get(probe.0, probe.1).is_some_and(|known| known.waits);
            ends && !sample.callers.contains_key(probe) && !thinning.out.contains(probe)
        };
        let calls = calls.into_iter().map(|(probe, calls)| (probe, calls, may(&probe))).collect();
        let Decision { share, out } = thinning.decide(&Window { cpu, record, calls });
        if out.is_empty() {
            return None;
        }
        let closed = match attached.take_out(&target.process, &out.iter().copied().collect()) {
            Ok(closed) => closed,
            Err(why) => return Some(Err(why)),
        };
        let at = TickClock::ticks();
        thinning.out.extend(&closed.probes);
        sample.begin_anew();
        let gone = out.into_iter().filter(|probe| closed.probes.contains(probe));
        let probes = gone
            .map(|(segment, probe)| TakenProbe {
                segment: segment as u32,
                probe,
                calls: decoder.read.get(segment, probe),
            })
            .collect();
        Some(Ok((number, TakenOut { at, share, record_ns: record.as_nanos() as f64, probes })))
    }
    /// Lets threads wait for room in full rings, in this round and until the next one.
    fn let_wait(&mut self, segments: &[Segment]) {
        for segment in segments.iter().filter(|one| one.rings().is_compact()) {
            segment.beat();
            self.given_up += u64::from(segment.allow_waiting() == Waiting::Again);
        }
    }
    /// Notes whether a thread of a process that has ended had given up before, which no round has seen.
    pub(super) fn note_end(&mut self, segments: &[Segment]) {
        let given_up = |segment: &&Segment| segment.rings().is_compact() && segment.has_given_up();
        if !std::mem::replace(&mut self.ended, true) {
            self.given_up += segments.iter().filter(given_up).count() as u64;
        }
    }
    /// Notices for the end of the session.
    pub(super) fn notices(&self, pid: u32) -> Vec<String> {
        let unpaired = unpaired_notice(pid, self.decoder.pairing.unpaired);
        let given_up = (self.given_up > 0).then(|| {
            format!(
                "process {pid} waited for this trapline as long as it may, {} times, and went on without being recorded for a while",
                self.given_up
            )
        });
        let above = self.thinning.as_ref().and_then(|(thinning, _)| thinning.still_above());
        let above = above.map(|share| {
            format!(
                "recording process {pid} still cost {:.1} % of its time, more than its budget: of the functions that are left, each calls a recorded one; leave some out by --unpatch",
                100.0 * share
            )
        });
        unpaired.into_iter().chain(self.rings.notice(pid)).chain(given_up).chain(above).collect()
    }
}
