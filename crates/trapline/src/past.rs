//! What is kept of processes that have ended: their counts, and no more.
//!
//! In: the last report, aggregations and stacks of a process that was let go (PAST-1, `traced::leaving`).
//! Out: what later reports still need. Equal values of several processes are kept once. Invariant: TRC-2.
//! Does not: touch a process, or keep anything of its memory.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Instant;

use trapline_tracee::FileId;

use crate::aggregation::Tallied;
use crate::files::id_of;
use crate::maps::MapContents;
use crate::report::{ProcessReport, Refused, Site};
use crate::stacks::{Frame, StackFile, StackSum};
use crate::summary::Summary;
use crate::threads::Names;

/// All of them, in the order in which they were let go.
#[derive(Debug, Default)]
pub(crate) struct PastProcesses {
    all: Vec<Past>,
    summary: Summary,
    shared: Shared,
}

impl PastProcesses {
    /// Adds one.
    pub(crate) fn add(&mut self, mut past: Past, summary: &Summary) {
        past.reduce(&mut self.shared);
        self.all.push(past);
        self.summary.add(summary);
    }
    pub(crate) const fn len(&self) -> usize {
        self.all.len()
    }
    /// Totals of all of them.
    pub(crate) const fn summary(&self) -> &Summary {
        &self.summary
    }
    pub(crate) fn refused(&self) -> impl Iterator<Item = &Refused> {
        self.all.iter().flat_map(|past| past.report.refused.iter())
    }
    /// All counts. `ends`: the next interval begins with this report.
    pub(crate) fn reports(&mut self, ends: bool) -> impl Iterator<Item = ProcessReport> {
        self.all.iter_mut().map(move |past| past.report(ends))
    }
    /// The last reports, which use up what is left.
    pub(crate) fn last_reports(&mut self) -> impl Iterator<Item = ProcessReport> {
        std::mem::take(&mut self.all).into_iter().map(Past::last_report)
    }
    pub(crate) fn tallies(&self) -> impl Iterator<Item = Tallied> {
        self.all.iter().flat_map(|past| past.tallies.iter().cloned())
    }
    /// What their maps hold; what hits said is taken.
    pub(crate) fn maps(&mut self) -> impl Iterator<Item = MapContents> {
        self.all.iter_mut().filter(|past| past.maps.has_any()).map(|past| {
            let said = std::mem::take(&mut past.maps.said);
            MapContents { said, ..past.maps.clone() }
        })
    }
    /// Takes the stacks.
    pub(crate) fn take_stacks(&mut self) -> impl Iterator<Item = StackSum> {
        self.all.iter_mut().flat_map(|past| std::mem::take(&mut past.stacks))
    }
    /// Pids of processes in which calls belonged to goroutines.
    pub(crate) fn goroutines(&self) -> impl Iterator<Item = u32> {
        self.all.iter().filter(|past| past.is_go).map(|past| past.report.pid)
    }
    /// Name of a thread, if it was read; in the process that had the pid last.
    pub(crate) fn thread_name(&self, pid: u32, tid: u32) -> Option<String> {
        let mut of_pid = self.all.iter().rev().filter(|past| past.report.pid == pid);
        of_pid.find_map(|past| past.thread_name(tid))
    }
    /// Process of a thread, if it was read; as [`Self::thread_name`].
    pub(crate) fn process_of(&self, pid: u32, tid: u32) -> Option<u32> {
        let mut of_pid = self.all.iter().rev().filter(|past| past.report.pid == pid);
        of_pid.find_map(|past| past.names.get(past.names.seen(tid).unwrap_or(tid)).process)
    }
}

/// A process that has ended, and what is kept of it.
#[derive(Debug)]
pub(crate) struct Past {
    /// Report as of the end. What is new in it is reported once.
    pub(crate) report: ProcessReport,
    pub(crate) interval: Interval,
    pub(crate) tallies: Vec<Tallied>,
    pub(crate) maps: MapContents,
    pub(crate) stacks: Vec<StackSum>,
    pub(crate) is_go: bool,
    pub(crate) names: Names,
}

impl Past {
    /// Drops what reports do not need: of sites without a hit, only the number is kept.
    fn reduce(&mut self, shared: &mut Shared) {
        let report = &mut self.report;
        let all = (report.counts.len(), report.times.len());
        report
            .counts
            .retain(|count| count.hits > 0 || count.filtered.is_some_and(|one| one != Default::default()));
        report.times.retain(|times| !times.are_none());
        report.counts.shrink_to_fit();
        report.times.iter_mut().for_each(|times| times.histogram.shrink());
        report.times.shrink_to_fit();
        report.quiet = (all.0 - report.counts.len()).max(all.1 - report.times.len()) as u64;
        shared.share(report);
        self.tallies.retain(|tallied| tallied.hits() > 0 || tallied.filtered > 0);
        self.tallies.iter_mut().for_each(|tallied| once(&mut shared.sites, &mut tallied.site));
        shared.share_stacks(&mut self.stacks);
    }
    /// Name of a thread, if it was read. `tid` is the number that the tracer sees.
    fn thread_name(&self, tid: u32) -> Option<String> {
        self.names.get(self.names.seen(tid).unwrap_or(tid)).comm
    }
    fn last_report(self) -> ProcessReport {
        let now = Instant::now();
        let (seconds, delta_seconds) = self.interval.at(now);
        ProcessReport { seconds, delta_seconds, ..self.report }
    }
    fn report(&mut self, ends: bool) -> ProcessReport {
        let now = Instant::now();
        let (seconds, delta_seconds) = self.interval.at(now);
        let report = ProcessReport { seconds, delta_seconds, ..self.report.clone() };
        if ends {
            self.interval.reported = now;
            for count in &mut self.report.counts {
                count.delta = 0;
                count.shares.iter_mut().for_each(|share| share.delta = 0);
            }
        }
        report
    }
}

/// Times of a process' reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    began: Instant,
    /// Time of the last report, with which the present interval began.
    pub(crate) reported: Instant,
}

impl Interval {
    /// Begins now.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { began: now, reported: now }
    }
    /// Seconds since attach, and since the last report.
    pub(crate) fn at(self, now: Instant) -> (f64, f64) {
        let since = |time| now.duration_since(time).as_secs_f64();
        (since(self.began), since(self.reported))
    }
}

/// What many processes have in common, each kept once.
#[derive(Debug, Default)]
struct Shared {
    sites: HashSet<Arc<Site>>,
    refused: HashSet<Arc<Vec<Refused>>>,
    files: Vec<(Option<FileId>, Arc<StackFile>)>,
}

/// Replaces `one` by the equal value that was there first.
fn once<T: Eq + Hash>(all: &mut HashSet<Arc<T>>, one: &mut Arc<T>) {
    match all.get(one) {
        Some(known) => *one = Arc::clone(known),
        None => _ = all.insert(Arc::clone(one)),
    }
}

impl Shared {
    fn share(&mut self, report: &mut ProcessReport) {
        report.counts.iter_mut().for_each(|count| once(&mut self.sites, &mut count.site));
        let times = report.times.iter_mut().filter_map(|times| times.site.as_mut());
        times.for_each(|site| once(&mut self.sites, site));
        once(&mut self.refused, &mut report.refused);
    }
    fn share_stacks(&mut self, stacks: &mut [StackSum]) {
        for sum in stacks {
            once(&mut self.sites, &mut sum.site);
            let frame = |frame: &Frame| {
                let place = frame.place.as_ref().map(|(file, offset)| (self.file(file), *offset));
                Frame { place, ..frame.clone() }
            };
            sum.frames = sum.frames.iter().map(frame).collect();
        }
    }
    fn file(&mut self, file: &Arc<StackFile>) -> Arc<StackFile> {
        if let Some((_, known)) = self.files.iter().find(|(_, known)| Arc::ptr_eq(known, file)) {
            return Arc::clone(known);
        }
        let id = file.file.as_ref().and_then(|file| id_of(file).ok());
        let same = |(other, known): &&(_, Arc<StackFile>)| *other == id && known.path == file.path;
        if let Some((_, known)) = self.files.iter().find(same) {
            return Arc::clone(known);
        }
        self.files.push((id, Arc::clone(file)));
        Arc::clone(file)
    }
}
