//! Reads what was counted and recorded in one process.
//!
//! In: its patches and sites ([`Prober`]). Out: calls, aggregations, durations, a [`ProcessReport`].
//! Invariant: TRC-2. Does not: patch.

use std::time::Instant;

use super::call_times::CallTimes;
use super::counters::Counters;
use super::keyed_stacks::KeyedStacks;
use super::prober::Prober;
use super::recorder::Recorder;
use super::target_process::TargetProcess;
use super::thread_names::ThreadNames;
use crate::aggregation::Tallied;
use crate::calls::Call;
use crate::decode::Clock;
use crate::histogram::TickScale;
use crate::maps::{MapContents, MapKind, MapTable, RawMaps};
use crate::past::Interval;
use crate::report::{By, Ended, ProcessReport, Share, Times};
use crate::session_request::ReportOptions;
use crate::sharers::Sharers;
use crate::stacks::StackSum;

/// What reading takes.
#[derive(Debug)]
pub(super) struct Readings {
    pub(super) recorder: Recorder,
    pub(super) names: ThreadNames,
    /// Which processes share the maps.
    pub(super) sharers: Sharers,
    /// Stacks in keys of maps, if there are any.
    pub(super) keyed: Option<KeyedStacks>,
    times: CallTimes,
    pub(super) interval: Interval,
}

impl Readings {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            recorder: Recorder::default(),
            names: ThreadNames::default(),
            sharers: Sharers::default(),
            keyed: None,
            times: CallTimes::default(),
            interval: Interval::new(now),
        }
    }
    /// Takes the kernel's records about threads, and settles rows of those that were renamed.
    pub(super) fn read_names(&mut self, target: &TargetProcess, prober: &mut Prober) {
        self.names.read(target, &mut prober.sites, &prober.patches.attached);
    }
    /// Everything that counts.
    pub(super) const fn counters<'a>(&'a self, prober: &'a Prober) -> Counters<'a> {
        Counters {
            sites: &prober.sites,
            attached: &prober.patches.attached,
            links: &prober.patches.links,
            decoder: &self.recorder.decoder,
            names: &self.names,
        }
    }
    /// Reads a round and reports calls, or sums stacks. With `until`, the tick at which the round begins,
    /// these are the calls that ended before the round before it. Without it, these are all calls,
    /// including those that have not ended. Returns the number of records taken.
    pub(super) fn each_call(
        &mut self,
        target: &TargetProcess,
        prober: &mut Prober,
        clock: Clock,
        until: Option<u64>,
        each: &mut dyn FnMut(Call),
    ) -> usize {
        let Prober { sites, patches, .. } = prober;
        if self.recorder.stacks.is_some() {
            return self.recorder.sum_stacks(
                target,
                sites,
                &patches.attached,
                &mut self.names,
                (clock, until),
                each,
            );
        }
        self.recorder.each_call(target, sites, &patches.attached, &mut self.names, (clock, until), each)
    }
    /// All sums of stacks, most calls first.
    pub(super) fn stack_sums(
        &self,
        target: &TargetProcess,
        prober: &Prober,
        ns_per_tick: f64,
    ) -> Vec<StackSum> {
        let stacks = self.recorder.stacks.as_ref();
        stacks.map_or_else(Vec::new, |stacks| stacks.sums(target, &prober.sites, ns_per_tick))
    }
    /// Aggregations, site by site.
    pub(super) fn tallies(
        &mut self,
        target: &TargetProcess,
        prober: &mut Prober,
        by: Option<By>,
    ) -> Vec<Tallied> {
        self.read_names(target, prober);
        let contents = prober.sites.contents(&prober.patches.attached, by);
        self.names.look_at_tables(target, &contents);
        self.counters(prober).tallies(target.pid(), contents, by)
    }
    /// What is in the maps of hits' programs.
    pub(super) fn maps(
        &mut self,
        target: &TargetProcess,
        prober: &mut Prober,
        (tables, last): (&[MapTable], bool),
    ) -> MapContents {
        if tables.is_empty() {
            return MapContents::default();
        }
        self.read_names(target, prober);
        let mut maps = RawMaps::read(&prober.patches.attached, tables);
        // Stacks before what hits said: what names one that is not known waits.
        if tables.iter().any(|table| table.kind == MapKind::Said) {
            let segments = prober.patches.attached.segments();
            self.keyed.iter_mut().for_each(|keyed| _ = keyed.read(&target.process, segments));
            let keyed = self.keyed.as_ref();
            let stack = |segment, number| keyed.is_some_and(|keyed| keyed.has((segment, number)));
            maps.take_said(&prober.patches.attached, (&stack, last));
        }
        self.names.look(target, &maps.threads(), false);
        self.sharers.look(&target.process, prober.patches.attached.segments());
        let sites = prober.sites.by_counter();
        let site = |segment: usize, probe: u32| sites.get(&(segment, probe)).cloned();
        // Maps first, then stacks: each key that was read has its stack.
        let segments = prober.patches.attached.segments();
        let without = self.keyed.as_mut().map_or(0, |keyed| keyed.read(&target.process, segments));
        let stack = |segment: usize, number: u64| {
            self.keyed.as_ref()?.stack((segment, number), |probe| site(segment, probe))
        };
        let mut contents = maps.known((target.pid(), self.names.known(), &self.sharers), &stack);
        contents.unseen += self.counters(prober).unseen() + without;
        contents
    }
    /// All counts now. `ended`: how the process ended, if it has. `ends`: the next interval begins with this
    /// report.
    pub(super) fn report(
        &mut self,
        target: &TargetProcess,
        prober: &mut Prober,
        ended: Option<&Ended>,
        options: ReportOptions,
        ends: bool,
    ) -> ProcessReport {
        let ReportOptions { scale, timed, by, .. } = options;
        let now = Instant::now();
        let times = if timed {
            self.call_times(target, prober, ended.is_none(), scale)
        } else {
            self.times_of_stacks(prober, scale)
        };
        let (hits, counts) = if timed {
            (times.iter().map(|times| times.histogram.calls()).collect(), Vec::new())
        } else {
            let split = self.split(target, prober, by);
            let hits = self.counters(prober).hits(&split);
            let counts = self.counters(prober).counts(&hits, split);
            (hits, counts)
        };
        let (seconds, delta_seconds) = self.interval.at(now);
        if ends {
            prober.sites.iter_mut().zip(&hits).for_each(|(tracked, &hits)| tracked.last = hits);
            self.interval.reported = now;
        }
        ProcessReport {
            pid: target.pid(),
            nth: target.nth,
            processes: 1,
            name: target.name.clone(),
            workload: target.workload.clone(),
            seconds,
            delta_seconds,
            counts,
            times,
            quiet: 0,
            refused: prober.sites.refused().clone(),
            late: prober.loads.late(),
            missed: self.counters(prober).missed(),
            interrupted_syscalls: prober.patches.costs.interrupted,
            restarted_timeouts: prober.patches.costs.restarted,
            ended: ended.cloned(),
        }
    }
    /// Hits of each site, by group; empty where they are not split.
    fn split(&mut self, target: &TargetProcess, prober: &mut Prober, by: Option<By>) -> Vec<Vec<Share>> {
        let Some(by) = by else { return vec![Vec::new(); prober.sites.len()] };
        self.names.look_at_rows(target, prober.patches.segments(), true);
        prober.sites.split(&prober.patches.attached, by, self.names.known())
    }
    fn call_times(
        &mut self,
        target: &TargetProcess,
        prober: &Prober,
        is_there: bool,
        scale: TickScale,
    ) -> Vec<Times> {
        let process = (target, &prober.patches.attached);
        self.times.times(process, &prober.sites, is_there, scale, prober.patches.steps)
    }
    fn times_of_stacks(&self, prober: &Prober, scale: TickScale) -> Vec<Times> {
        let (stacks, read) = (self.recorder.stacks.as_ref(), &self.recorder.decoder.read);
        stacks.map_or_else(Vec::new, |stacks| stacks.times(&prober.sites, read, scale))
    }
}
