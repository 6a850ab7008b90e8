//! Records read from a process' rings.
//!
//! In: the rings of all its segments. Out: [`Call`]s, and how many records were read for each site. Invariant: LOSS-2 hits are records
//! read and records dropped, to the hit. Does not: put entries and exits together (`crate::calls`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use trapline_plan::Role;
use trapline_record::ring::Kind;

use super::{Source, Traced};
use crate::calls::{Call, Found, Paired, Pairing};
use crate::report::Site;

/// What was read so far.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// Bytes taken, for each segment and ring.
    tails: Vec<Vec<u64>>,
    pairing: Pairing,
    /// Entries read, by segment and probe.
    pub(super) read: HashMap<(usize, u32), u64>,
    /// Heads that could not be: the target wrote over them.
    pub(super) broken: u64,
}

impl Traced {
    /// What was recorded since the last call; with `last` also what has not ended. `start` is the tick at which time begins.
    pub(crate) fn calls(&mut self, start: u64, ns_per_tick: f64, last: bool) -> Vec<Call> {
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
        let waits = |segment, probe| sites.get(&(segment, probe)).is_some_and(|site| site.1);
        let mut paired = self.records.pairing.feed(round, waits);
        if last {
            paired.extend(self.records.pairing.rest());
        }
        let since = |ticks: u64, from: u64| {
            Duration::from_nanos((ticks.saturating_sub(from) as f64 * ns_per_tick).round() as u64)
        };
        let call = |Paired { segment, entry, exit, how }: Paired| {
            let (site, _) = sites.get(&(segment, entry.probe))?;
            let mut arguments = [0; 6];
            arguments.copy_from_slice(&entry.values[..6]);
            Some(Call {
                pid: self.process.pid(),
                tid: entry.tid,
                site: Arc::clone(site),
                at: since(entry.ticks, start),
                arguments,
                returned: exit.filter(|exit| exit.kind == Kind::Return).map(|exit| exit.values[0]),
                took: exit.map(|exit| since(exit.ticks, entry.ticks)),
                how,
            })
        };
        paired.into_iter().filter_map(call).collect()
    }
    fn take_records(&mut self) -> Vec<Found> {
        let mut round = Vec::new();
        let records = &mut self.records;
        for (nth, segment) in self.attached.segments().iter().enumerate() {
            let rings = segment.rings();
            if records.tails.len() == nth {
                records.tails.push(vec![0; rings.rings as usize]);
            }
            for (ring, tail) in (0..).zip(&mut records.tails[nth]) {
                let taken = rings.take(segment.view(), ring, tail, |record| {
                    if record.kind == Kind::Entry {
                        *records.read.entry((nth, record.probe)).or_default() += 1;
                    }
                    round.push((nth, *record));
                });
                records.broken += u64::from(taken.is_err());
            }
        }
        round
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

impl super::Tracked {
    pub(super) const fn is_recorded(&self) -> bool {
        matches!(self.role, Role::Record { .. } | Role::RecordAt(_))
    }
}
