//! Reads what was counted: hits, aggregations, and what was filtered or lost.
//!
//! In: the process' segments, kernel links, and entries that were read from rings. Out: numbers, by site
//! and in all. A site's hits are those of all its sources, one for each time that its file was mapped.
//! Does not: change anything.

use std::sync::Arc;

use trapline_patch::{Attached, Segment};
use trapline_record::counters::filtered;

use super::kernel::KernelLinks;
use super::site_table::{SiteTable, Source, Tracked};
use super::thread_names::ThreadNames;
use crate::aggregation::{FilteredByName, GroupHits, TableContents, Tallied};
use crate::decode::Decoder;
use crate::report::{By, Count, Filtered, Share};

/// Everything that counts in one process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counters<'a> {
    pub(super) sites: &'a SiteTable,
    pub(super) attached: &'a Attached,
    pub(super) links: &'a KernelLinks,
    pub(super) decoder: &'a Decoder,
    pub(super) names: &'a ThreadNames,
}

impl Counters<'_> {
    fn segment(&self, nth: usize) -> &Segment {
        &self.attached.segments()[nth]
    }
    /// Hits of each site. `split` holds them by group, where they are split.
    pub(super) fn hits(&self, split: &[Vec<Share>]) -> Vec<u64> {
        let kernel = self.links.counts();
        let one = |(tracked, shares): (&Tracked, &Vec<Share>)| match shares[..] {
            [] => self.hits_of(tracked, &kernel),
            // The total is the sum of the groups that are shown.
            _ => shares.iter().fold(0, |sum: u64, share| sum.wrapping_add(share.hits)),
        };
        self.sites.iter().zip(split).map(one).collect()
    }
    /// The same for reports.
    pub(super) fn counts(&self, hits: &[u64], split: Vec<Vec<Share>>) -> Vec<Count> {
        let one = |((tracked, &hits), shares): ((&Tracked, &u64), Vec<Share>)| Count {
            site: tracked.site.clone(),
            hits,
            delta: hits.wrapping_sub(tracked.last),
            shares,
            filtered: self.filtered(tracked),
        };
        self.sites.iter().zip(hits).zip(split).map(one).collect()
    }
    fn hits_of(&self, tracked: &Tracked, kernel: &[Vec<u64>]) -> u64 {
        if tracked.is_tallied() {
            return tracked.contents(self.attached, None).sum();
        }
        let one = |source: &Source| match *source {
            Source::Counter { segment, index, .. } if tracked.is_recorded() => {
                self.decoder.read.get(segment, index)
            }
            Source::Counter { segment, index, .. } => {
                let segment = self.segment(segment);
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
    /// Aggregations, site by site; `contents` are those of their tables.
    pub(super) fn tallies(
        &self,
        pid: u32,
        contents: Vec<(&Tracked, TableContents)>,
        by: Option<By>,
    ) -> Vec<Tallied> {
        contents.into_iter().map(|(tracked, contents)| self.tallied(pid, tracked, contents, by)).collect()
    }
    fn tallied(&self, pid: u32, tracked: &Tracked, contents: TableContents, by: Option<By>) -> Tallied {
        let (parts, left) = self.parts(tracked, &contents, by);
        let filtered = self.filtered(tracked).map_or(0, |filtered| filtered.in_target);
        Tallied {
            pid,
            site: Arc::clone(&tracked.site),
            parts,
            texts: contents.texts,
            overflow: contents.rest.overflow,
            unseen: contents.rest.unseen,
            filtered: filtered + left.others + left.unnamed,
            unnamed: left.unnamed,
        }
    }
    /// Rows of a site's aggregation, and hits that are in none of them.
    fn parts(
        &self,
        tracked: &Tracked,
        contents: &TableContents,
        by: Option<By>,
    ) -> (Vec<GroupHits>, FilteredByName) {
        let wanted = tracked.filter.as_ref().map_or(&[][..], |filter| filter.names());
        contents.parts(by, &tracked.settled, self.names.known(), wanted)
    }
    /// Hits of a site that were filtered.
    pub(super) fn filtered(&self, tracked: &Tracked) -> Option<Filtered> {
        tracked.filter.as_ref().filter(|filter| {
            filter.rejects() || filter.tallied().is_none() && !filter.only_reads() || filter.tallies_calls()
        })?;
        let mut out = Filtered::default();
        for (nth, probe) in tracked.counters() {
            let segment = self.segment(nth);
            let words = segment.filtered();
            if !words.is_empty() {
                let word = |nth| words.read(segment.view(), filtered::WORDS * probe + nth);
                let late = word(filtered::REJECTED_LATE);
                out.in_target += word(filtered::REJECTED) + late;
                let begun = word(filtered::BEGUN);
                let ended =
                    late + self.decoder.read.get(nth, probe) + segment.counters().read(segment.view(), probe);
                out.unended += begun.saturating_sub(ended);
            }
            out.by_reader += self.decoder.left_out.get(nth, probe);
        }
        if tracked.is_tallied() {
            let by = self.names.rows_by();
            let contents = tracked.contents(self.attached, by);
            let (_, left) = self.parts(tracked, &contents, by);
            out.by_reader += left.others + left.unnamed;
            out.unended = out.unended.saturating_sub(contents.sum());
        }
        Some(out)
    }
    /// Filtered hits of all sites.
    pub(super) fn all_filtered(&self) -> Option<Filtered> {
        let all = self.sites.iter().filter_map(|tracked| self.filtered(tracked));
        all.reduce(|sum, one| Filtered {
            in_target: sum.in_target + one.in_target,
            by_reader: sum.by_reader + one.by_reader,
            unended: sum.unended + one.unended,
        })
    }
    /// Records that were dropped. Where hits are recorded, counters hold just these.
    fn dropped(&self) -> u64 {
        self.sum_of(|tracked| tracked.is_recorded() || tracked.tallies_calls())
    }
    /// Returns that ran no program, because the call went on as another function. Where hits run programs, counters hold
    /// just these.
    pub(super) fn unseen(&self) -> u64 {
        self.sum_of(Tracked::runs_program)
    }
    /// The sum of some sites' counters.
    fn sum_of(&self, is_one: impl Fn(&Tracked) -> bool) -> u64 {
        let one = |(segment, index)| {
            let segment = self.segment(segment);
            segment.counters().read(segment.view(), index)
        };
        let some = self.sites.iter().filter(|tracked| is_one(tracked));
        some.flat_map(Tracked::counters).map(one).fold(0, u64::wrapping_add)
    }
    /// Hits that could not be recorded or timed.
    pub(super) fn missed(&self) -> u64 {
        let unstamped: u64 = self.attached.segments().iter().map(Segment::missed).sum();
        unstamped + self.dropped()
    }
}
