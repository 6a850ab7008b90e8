//! Reads what was counted: hits, their groups, durations, and what was lost.
//!
//! In: the process' segments and kernel links. Out: [`ProcessReport`]s and sums. A site's hits are those of
//! all its sources, one for each time that its file was mapped. Does not: change anything in the process,
//! except that it gives memory back at the end.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use trapline_patch::{Attached, Options, armed};
use trapline_plan::Action;
use trapline_tracee::Process;

use super::{Source, Traced, Tracked};
use crate::group_by::{parts, shares};
use crate::histogram::Scale;
use crate::report::{By, Count, ProcessReport, Share, Tactic, Times};
use crate::tallies::{FilteredByName, GroupHits, TableContents, Tallied};
use crate::times::{in_flight, read_times, stamps_resident};

/// Adds armed calls that are in flight.
fn add_armed(attached: &Attached, process: &Process, sums: &mut [HashMap<u32, u64>]) {
    let calls =
        attached.trampolines().and_then(|trampolines| armed(process, &trampolines).ok()).unwrap_or_default();
    for call in calls.iter().filter(|call| call.word != 0) {
        let segments = attached.segments().iter().zip(&mut *sums);
        for (function, sum) in segments.filter_map(|(home, sum)| Some((home.function_of(call.what)?, sum))) {
            *sum.entry(function).or_default() += 1;
        }
    }
}

impl Traced {
    fn hits(&self, tracked: &Tracked, kernel: &[Vec<u64>]) -> u64 {
        if let Action::Tally { .. } = tracked.action {
            return self.aggregated_of(tracked, None).sum();
        }
        let one = |source: &Source| match *source {
            Source::Counter { segment, index, .. } => {
                if tracked.is_recorded() {
                    return self.records.decoder.read.get(segment, index);
                }
                let segment = &self.attached.segments()[segment];
                let (view, threads) = (segment.view(), segment.threads());
                match threads.is_empty() {
                    true => segment.counters().read(view, index),
                    false => threads.rows(view).map(|(row, _)| threads.read(view, row, index)).sum(),
                }
            }
            Source::Kernel { link, nth } => {
                kernel.get(link).and_then(|counts| counts.get(nth)).copied().unwrap_or(0)
            }
        };
        tracked.sources.iter().map(one).fold(0, u64::wrapping_add)
    }
    pub(super) fn aggregated_of(&self, tracked: &Tracked, by: Option<By>) -> TableContents {
        let mut contents = TableContents::default();
        if let Some(tally) = tracked.filter.as_ref().and_then(|filter| filter.tallied()) {
            for (nth, probe) in tracked.counters() {
                contents.add(&self.attached.segments()[nth], probe, by, tally, self.attached.counts_by_cpu());
            }
        }
        contents
    }
    /// Contents of the aggregation tables, by the index of their site.
    pub(crate) fn contents(&self, by: Option<By>) -> Vec<(usize, TableContents)> {
        let tallied = self.sites.iter().enumerate().filter(|(_, t)| matches!(t.action, Action::Tally { .. }));
        tallied.map(|(index, tracked)| (index, self.aggregated_of(tracked, by))).collect()
    }
    /// Aggregation of a site, for reports.
    pub(crate) fn tallied(&self, index: usize, contents: &TableContents, by: Option<By>) -> Tallied {
        let tracked = &self.sites[index];
        let (parts, left) = self.parts(tracked, contents, by);
        let filtered = self.filtered(tracked).map_or(0, |filtered| filtered.in_target);
        Tallied {
            pid: self.process.pid(),
            site: Arc::clone(&tracked.site),
            parts,
            texts: contents.texts.clone(),
            overflow: contents.rest.overflow,
            unseen: contents.rest.unseen,
            filtered: filtered + left.others + left.unnamed,
            unnamed: left.unnamed,
        }
    }
    /// Rows of a site's aggregation, and hits that are in none of them.
    pub(super) fn parts(
        &self,
        tracked: &Tracked,
        contents: &TableContents,
        by: Option<By>,
    ) -> (Vec<GroupHits>, FilteredByName) {
        let wanted = tracked.filter.as_ref().map_or(&[][..], |filter| filter.names());
        contents.parts(by, &tracked.settled, &self.names, wanted)
    }
    /// Looks up the names of these threads.
    pub(crate) fn look_at_names(&mut self, threads: &HashSet<u32>) {
        self.names.look(self.process.pid(), &self.children, threads, false);
    }
    /// Hits of each site, by group. Sites that the kernel counts have no groups.
    fn split(&mut self, by: By) -> Vec<Vec<Share>> {
        self.name_threads(true);
        let (segments, owned) = (self.attached.segments(), self.attached.counts_by_cpu());
        let one = |tracked: &mut Tracked| {
            let mut now = HashMap::new();
            for source in &tracked.sources {
                if let Source::Counter { segment, index, .. } = *source {
                    parts(by, owned, &segments[segment], index, &mut now);
                }
            }
            shares(by, now, &mut tracked.parts, &self.names)
        };
        self.sites.iter_mut().map(one).collect()
    }
    /// Looks up the names of threads that hit something, before they end.
    pub(super) fn name_threads(&mut self, again: bool) {
        let rows = self.attached.segments().iter().flat_map(|segment| segment.threads().rows(segment.view()));
        let counted: HashSet<u32> = rows.filter_map(|(_, thread)| thread).collect();
        if !counted.is_empty() {
            self.names.look(self.process.pid(), &self.children, &counted, again);
        }
    }
    /// All counts now.
    pub(crate) fn report(&mut self, scale: Scale, timed: bool, by: Option<By>, ends: bool) -> ProcessReport {
        let now = Instant::now();
        let kernel: Vec<Vec<u64>> = self.links.iter().map(|link| link.counts().unwrap_or_default()).collect();
        let times = if timed { self.times(scale) } else { self.times_of_stacks(scale) };
        let split = match by {
            Some(by) if !timed => self.split(by),
            _ => vec![Vec::new(); self.sites.len()],
        };
        let hits: Vec<u64> = match timed {
            true => times.iter().map(|times| times.histogram.calls()).collect(),
            false => self
                .sites
                .iter()
                .zip(&split)
                .map(|(tracked, shares)| match shares[..] {
                    [] => self.hits(tracked, &kernel),
                    // The total is the sum of the groups that are shown.
                    _ => shares.iter().fold(0, |sum: u64, share| sum.wrapping_add(share.hits)),
                })
                .collect(),
        };
        let mut split = split.into_iter();
        let counts = self.sites.iter().zip(&hits).map(|(tracked, &hits)| Count {
            site: tracked.site.clone(),
            hits,
            delta: hits.wrapping_sub(tracked.last),
            shares: split.next().unwrap_or_default(),
            filtered: self.filtered(tracked),
        });
        let counts: Vec<Count> = if timed { Vec::new() } else { counts.collect() };
        if ends {
            self.sites.iter_mut().zip(&hits).for_each(|(tracked, &hits)| tracked.last = hits);
        }
        let report = ProcessReport {
            pid: self.process.pid(),
            nth: self.nth,
            name: self.name.clone(),
            seconds: now.duration_since(self.began).as_secs_f64(),
            delta_seconds: now.duration_since(self.reported).as_secs_f64(),
            counts,
            times,
            quiet: 0,
            refused: self.refused.clone(),
            late: self.loads.late(),
            missed: self.missed(),
            interrupted_syscalls: self.costs.interrupted,
            restarted_timeouts: self.costs.restarted,
            ended: self.ended.clone(),
        };
        if ends {
            self.reported = now;
        }
        report
    }
    /// Calls in flight, in the process and in its forked children. After the process' end, and after a detach
    /// that freed the entry stamps, the last values stay.
    fn look_in_flight(&mut self) {
        let segments = self.attached.segments();
        if self.ended.is_some() || segments.is_empty() {
            return;
        }
        let now =
            segments.iter().map(|segment| in_flight(&self.process, segment)).collect::<Option<Vec<_>>>();
        let Some(mut now) = now else { return };
        add_armed(&self.attached, &self.process, &mut now);
        for child in self.children.iter().filter_map(|&pid| Process::open(pid).ok()) {
            let maps = child.maps().unwrap_or_default();
            for (segment, sum) in segments.iter().zip(&mut now) {
                // A child that runs another program, or was forked before the attach, has no stamps at that
                // address.
                if !maps.iter().any(|mapping| mapping.file == Some(segment.memfd())) {
                    continue;
                }
                for (function, calls) in in_flight(&child, segment).unwrap_or_default() {
                    *sum.entry(function).or_default() += calls;
                }
            }
            if segments.iter().any(|segment| maps.iter().any(|m| m.file == Some(segment.memfd()))) {
                add_armed(&self.attached, &child, &mut now);
            }
        }
        self.in_flight = now;
    }
    fn times(&mut self, scale: Scale) -> Vec<Times> {
        self.look_in_flight();
        let written: Vec<_> = self.attached.segments().iter().map(trapline_patch::Segment::timed).collect();
        let one = |tracked: &Tracked| {
            let areas = tracked.sources.iter().filter_map(|source| match *source {
                Source::Counter { segment, latency: Some(index), .. } => Some((segment, index)),
                _ => None,
            });
            let running = |(segment, index): (usize, u32)| {
                self.in_flight.get(segment).and_then(|calls| calls.get(&index)).copied().unwrap_or(0)
            };
            let in_flight = areas.clone().map(running).sum();
            let segments = self.attached.segments();
            read_times(
                areas.map(|(at, index)| (&segments[at], written[at].as_slice(), index)),
                tracked.site.clone(),
                in_flight,
                scale,
                self.steps,
            )
        };
        self.sites.iter().map(one).collect()
    }
    /// Called after the last report. Gives back counters, latency areas, and code that no thread can be in.
    /// Returns the bytes of memory that stay behind.
    pub(crate) fn forget(&mut self, options: &Options) -> u64 {
        if self.ended.is_some() || self.attached.segments().is_empty() {
            return 0;
        }
        let mut resident = 0;
        for segment in self.attached.segments() {
            if let Err(error) = segment.forget() {
                self.notices.push(format!("memory was not given back: {error}"));
            }
            resident += segment.resident() + stamps_resident(&self.process, segment);
        }
        // What is in use, or cannot be proven unused now, stays as it is. The next tracer that comes tries
        // again.
        if let Ok(freed) = self.attached.free(&self.process, options) {
            self.costs.left_mapped = freed.stays;
            resident = if freed.stays == 0 { 0 } else { resident };
        }
        resident
    }
    pub(crate) fn missed(&self) -> u64 {
        let unstamped: u64 = self.attached.segments().iter().map(trapline_patch::Segment::missed).sum();
        unstamped + self.dropped()
    }
    pub(crate) fn guard_hits(&self) -> u64 {
        self.costs.guards
            + self.attached.segments().iter().map(trapline_patch::Segment::guard_hits).sum::<u64>()
    }
    /// Hits counted by stubs, and hits counted by kernel uprobes.
    pub(crate) fn total_hits(&self) -> (u64, u64) {
        let split = |kernel: bool| {
            let some =
                self.sites.iter().filter(move |tracked| (tracked.site.tactic == Tactic::Kernel) == kernel);
            some.map(|tracked| tracked.last).fold(0, u64::wrapping_add)
        };
        (split(false), split(true))
    }
}
