//! Durations of calls, as stubs have summed them.
//!
//! In: latency areas, entry stamps and armed calls of the process and its children. Out: [`Times`] of each
//! site. Invariant: after a detach that freed the entry stamps, calls in flight stay as they were read last.
//! After the process' end, only those are left that cannot have ended since: no call counts twice. Armed calls
//! are also known by what began and did not end, which outlives the process (`plan`'s `latency::armed`). Both
//! are lower bounds, so the larger one is reported. Does not: read records.

use std::collections::HashMap;

use trapline_patch::{Attached, Segment, armed};
use trapline_tracee::Process;

use super::site_table::{SiteTable, Source, Tracked};
use super::target_process::TargetProcess;
use crate::histogram::{LinearBuckets, TickScale};
use crate::report::Times;
use crate::times::{in_flight, read_times};

/// What reading durations takes.
#[derive(Debug, Default)]
pub(super) struct CallTimes {
    /// Calls in flight, by latency area, for each segment.
    in_flight: Vec<HashMap<u32, u64>>,
    /// Calls of each site that had ended when those were read.
    ended: Vec<u64>,
}

impl CallTimes {
    /// Reads calls in flight, in the process and in its forked children; returns whether they could be read.
    fn look(&mut self, target: &TargetProcess, attached: &Attached) -> bool {
        let segments = attached.segments();
        if segments.is_empty() {
            return false;
        }
        let now =
            segments.iter().map(|segment| in_flight(&target.process, segment)).collect::<Option<Vec<_>>>();
        let Some(mut now) = now else { return false };
        add_armed(attached, &target.process, &mut now);
        for child in target.children.iter().filter_map(|&pid| Process::open(pid).ok()) {
            let maps = child.maps().unwrap_or_default();
            let has = |segment: &Segment| maps.iter().any(|mapping| mapping.file == Some(segment.memfd()));
            // A child that runs another program, or was forked before the attach, has no stamps at that
            // address.
            for (segment, sum) in segments.iter().zip(&mut now).filter(|(segment, _)| has(segment)) {
                for (function, calls) in in_flight(&child, segment).unwrap_or_default() {
                    *sum.entry(function).or_default() += calls;
                }
            }
            if segments.iter().any(has) {
                add_armed(attached, &child, &mut now);
            }
        }
        self.in_flight = now;
        true
    }
    /// Durations of each site's calls. `is_there`: calls in flight can be read, for the process has not ended.
    /// `steps`: equal steps of the histogram, if stubs count in them.
    pub(super) fn times(
        &mut self,
        (target, attached): (&TargetProcess, &Attached),
        sites: &SiteTable,
        is_there: bool,
        scale: TickScale,
        steps: Option<LinearBuckets>,
    ) -> Vec<Times> {
        let mut times = read(sites, attached.segments(), scale, steps);
        let now: Vec<u64> = times.iter().map(|times| times.calls + times.unreturned).collect();
        // In this order: a call that ends in between is not in flight, and ends later than `ended` says.
        if is_there && self.look(target, attached) {
            self.ended.clone_from(&now);
        }
        for (((times, tracked), now), then) in times.iter_mut().zip(sites.iter()).zip(&now).zip(&self.ended) {
            let running = |(segment, index): (usize, u32)| {
                self.in_flight.get(segment).and_then(|calls| calls.get(&index)).copied().unwrap_or(0)
            };
            let running: u64 = areas(tracked).map(running).sum();
            times.in_flight = times.in_flight.max(running.saturating_sub(now.saturating_sub(*then)));
        }
        times
    }
}

/// Latency areas of a site, as (segment, index).
fn areas(tracked: &Tracked) -> impl Iterator<Item = (usize, u32)> + Clone {
    tracked.sources.iter().filter_map(|source| match *source {
        Source::Counter { segment, latency: Some(index), .. } => Some((segment, index)),
        _ => None,
    })
}

/// Durations of each site's calls, without those in flight.
fn read(
    sites: &SiteTable,
    segments: &[Segment],
    scale: TickScale,
    steps: Option<LinearBuckets>,
) -> Vec<Times> {
    let written: Vec<_> = segments.iter().map(Segment::timed).collect();
    let one = |tracked: &Tracked| {
        let areas = areas(tracked).map(|(at, index)| (&segments[at], written[at].as_slice(), index));
        read_times(areas, tracked.site.clone(), scale, steps)
    };
    sites.iter().map(one).collect()
}

/// Adds armed calls that are in flight.
fn add_armed(attached: &Attached, process: &Process, sums: &mut [HashMap<u32, u64>]) {
    let calls =
        attached.trampolines().and_then(|trampolines| armed(process, &trampolines).ok()).unwrap_or_default();
    for call in calls.iter().filter(|call| call.word != 0) {
        let segments = attached.segments().iter().zip(&mut *sums);
        for (function, sum) in
            segments.filter_map(|(segment, sum)| Some((segment.function_of(call.what)?, sum)))
        {
            *sum.entry(function).or_default() += 1;
        }
    }
}
