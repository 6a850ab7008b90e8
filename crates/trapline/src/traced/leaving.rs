//! What is kept of a process that has ended: its counts, and no more.
//!
//! In: a followed process that has ended or runs another program. Out: whether anything may still be counted
//! in its segments; [`Past`], which holds what reports need, and none of the target's memory, descriptors, or
//! tables of the plan. Invariants: TRC-2. PAST-1 a process is let go only when its counts are final: no
//! process can count there any more, and all its records have been reported. Does not: touch a process.
//!
//! # When a process is let go
//!
//! The segments are memfds, and a forked child counts in those of its parent. Which children there are is not
//! known. They may have been forked by a forked child, have another parent or session by now, or share the
//! memory (`vfork`, `CLONE_VM`). So the memory is asked, and not the processes:
//!
//! - P1 The process has ended, or runs another program ([`Traced::alive`], an event of the follower's).
//! - P2 Each segment is settled ([`Attached::settle`](trapline_patch::Attached::settle)): the tracer's
//!   mapping becomes a private one, and the memfd is sealed against writes. The kernel refuses the seal while
//!   any process has a shared, writable mapping of the memfd. If it refuses, the tracer's mapping is made
//!   shared again, and P2 is tried later, each time after twice as long.
//! - P3 Where calls are recorded, three more rounds are reported. The first takes what is left in the rings.
//!   The second reports what happened before it, in the order of all processes. The third reports the calls
//!   that have not ended.
//! - P4 The report is made, and all else is dropped.
//!
//! Interleavings:
//!
//! - *A fork while the process ends*: the child's mappings are made before the parent's are gone. So one of
//!   them is there at each moment, and P2 is refused.
//! - *vfork, or a thread that outlives the main one*: the memory is there as long as one of them has it; P2
//!   is refused.
//! - *exec*: the old memory is gone before the program is held at its entry point, and children forked before
//!   have mappings of their own.
//! - *Double fork, a child of another session, a child whose parent is init*: the mapping counts, whichever
//!   process has it.
//! - *A child that ends between P2's look and its answer*: refused, and tried again.
//! - *A hit during P2*: it is a store through a mapping that exists, so P2 is refused, and the word is in the
//!   memory that is mapped again.
//! - *Another tracer or `trapline status` maps the memfd*: the same as for a child.
//! - *The tracer dies at any of these steps*: nothing of the target's has been changed.
//! - *A child is killed or traced by others*: its mapping goes when it does.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trapline_tracee::FileId;

use super::Traced;
use crate::files::id_of;
use crate::histogram::Scale;
use crate::report::{By, Ended, ProcessReport, Refused, Site, Summary};
use crate::stacks::{Frame, StackFile, StackSum};
use crate::tallies::Tallied;
use crate::threads::Names;

/// First pause after a refusal of P2, and the longest one.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);
/// Number of rounds of P3.
const ROUNDS: u8 = 3;

/// How far a process has been let go.
#[derive(Debug)]
pub(super) struct Leaving {
    settled: bool,
    /// P2 is not tried before this time. `pause` is how long to wait after the next refusal.
    again: Option<Instant>,
    pause: Duration,
    /// Rounds that were reported since P2.
    rounds: u8,
}

impl Default for Leaving {
    fn default() -> Self {
        Self { settled: false, again: None, pause: PAUSE, rounds: 0 }
    }
}

/// What many processes have in common, each kept once.
#[derive(Debug, Default)]
pub(crate) struct Shared {
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

/// How a session reports what it counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportOptions {
    pub(crate) scale: Scale,
    pub(crate) timed: bool,
    /// How counters are split.
    pub(crate) by: Option<By>,
    /// How rows of tables are split.
    pub(crate) rows_by: Option<By>,
}

/// A process that has ended, and what is kept of it.
#[derive(Debug)]
pub(crate) struct Past {
    /// Report as of the end. What is new in it is reported once.
    report: ProcessReport,
    began: Instant,
    reported: Instant,
    pub(crate) tallies: Vec<Tallied>,
    pub(crate) stacks: Vec<StackSum>,
    pub(crate) is_go: bool,
    names: Names,
}

impl Past {
    pub(crate) const fn pid(&self) -> u32 {
        self.report.pid
    }
    pub(crate) fn refused(&self) -> &[Refused] {
        &self.report.refused
    }
    /// Name of a thread, if it was read. `tid` is the number that the tracer sees.
    pub(crate) fn thread_name(&self, tid: u32) -> Option<String> {
        self.names.get(self.names.seen(tid).unwrap_or(tid)).comm
    }
    /// The last report, which uses up what is left of the process.
    pub(crate) fn last_report(self) -> ProcessReport {
        let now = Instant::now();
        ProcessReport {
            seconds: now.duration_since(self.began).as_secs_f64(),
            delta_seconds: now.duration_since(self.reported).as_secs_f64(),
            ..self.report
        }
    }
    /// All counts. `ends`: the next interval begins with this report.
    pub(crate) fn report(&mut self, ends: bool) -> ProcessReport {
        let now = Instant::now();
        let report = ProcessReport {
            seconds: now.duration_since(self.began).as_secs_f64(),
            delta_seconds: now.duration_since(self.reported).as_secs_f64(),
            ..self.report.clone()
        };
        if ends {
            self.reported = now;
            for count in &mut self.report.counts {
                count.delta = 0;
                count.shares.iter_mut().for_each(|share| share.delta = 0);
            }
        }
        report
    }
}

impl Traced {
    /// P1 and P2; returns whether P3 has been done.
    pub(crate) fn is_past(&mut self) -> bool {
        if self.ended.is_none() || self.detached {
            return false;
        }
        let records = self.attached.segments().iter().any(|segment| !segment.rings().is_empty());
        self.is_settled() && (!records || self.leaving.rounds >= ROUNDS)
    }
    fn is_settled(&mut self) -> bool {
        let now = Instant::now();
        if self.leaving.settled || self.leaving.again.is_some_and(|again| now < again) {
            return self.leaving.settled;
        }
        // If the kernel gives no answer, it is asked again later, and all is kept meanwhile.
        self.leaving.settled = self.attached.settle().unwrap_or(false);
        self.leaving.again = Some(now + self.leaving.pause);
        self.leaving.pause = (self.leaving.pause * 2).min(LONGEST);
        self.leaving.settled
    }
    /// P3: whether this round of records is the last one of this process.
    pub(super) const fn is_last_round(&mut self) -> bool {
        if self.leaving.settled {
            self.leaving.rounds = self.leaving.rounds.saturating_add(1);
        }
        self.leaving.rounds >= ROUNDS
    }
    /// P4. Of sites without a hit only the number is kept.
    pub(crate) fn leave(mut self, report_options: ReportOptions, shared: &mut Shared) -> (Past, Summary) {
        let ReportOptions { scale, timed, by, rows_by } = report_options;
        let delta_since = self.reported;
        let mut report = self.report(scale, timed, by, true);
        let all = (report.counts.len(), report.times.len());
        report
            .counts
            .retain(|count| count.hits > 0 || count.filtered.is_some_and(|one| one != Default::default()));
        report.times.retain(|times| !times.are_none());
        report.counts.shrink_to_fit();
        report.times.iter_mut().for_each(|times| times.histogram.shrink());
        report.times.shrink_to_fit();
        report.quiet = (all.0 - report.counts.len()).max(all.1 - report.times.len()) as u64;
        shared.share(&mut report);
        let mut tallies = self.tallies(rows_by);
        tallies.retain(|tallied| tallied.hits() > 0 || tallied.filtered > 0);
        tallies.iter_mut().for_each(|tallied| once(&mut shared.sites, &mut tallied.site));
        let mut stacks = self.stack_sums(scale.0);
        shared.share_stacks(&mut stacks);
        let summary = self.summary();
        let past = Past {
            report,
            began: self.began,
            reported: delta_since,
            tallies,
            stacks,
            is_go: self.is_go,
            names: std::mem::take(&mut self.names),
        };
        (past, summary)
    }
    /// Totals at the end, except refusals and what stays mapped.
    pub(crate) fn summary(&self) -> Summary {
        let (ours, kernel) = self.total_hits();
        let (costs, notices) = (self.costs, self.record_notices());
        let mut summary = Summary {
            processes: 1,
            notices: notices.into_iter().chain(self.notice_of_children()).collect(),
            ended: u64::from(self.ended.is_some()),
            killed: u64::from(self.is_asked_for && matches!(self.ended, Some(Ended::Killed { .. }))),
            children: self.forked(),
            matched: (self.probed().count() + self.refused().len()) as u64,
            hits: ours + kernel,
            missed: self.missed(),
            filtered: self.all_filtered(),
            guard_traps: self.guard_hits(),
            interrupted_syscalls: costs.interrupted,
            restarted_timeouts: costs.restarted,
            longest_stop: costs.longest_stop,
            attach_time: costs.attach,
            detach_time: costs.detach,
            memory_sites: costs.memory.sites,
            memory_per_cpu: costs.memory.per_cpu,
            left_mapped: if self.ended.is_some() { 0 } else { costs.left_mapped },
            foreign_sites: costs.foreign_sites,
            overwritten: self.overwritten(),
            undone: costs.undone,
            ..Summary::default()
        };
        self.probed().for_each(|site| summary.patched.add(site.tactic));
        summary
    }
}
