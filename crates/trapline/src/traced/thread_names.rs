//! Threads by name, for two uses: filters that pass over threads (`--comm`), and rows of hits that are
//! grouped by thread name. This is the reader's side of `trapline_record::names`, which has the protocol.
//!
//! In: names that filters ask for; the kernel's records about threads; names that were read. Out: entries in
//! the pass-over tables of all segments; for rows of renamed threads, their hits credited to the old name.
//! Invariants: NAM-1. NAM-2 a hit in a thread's row counts under the name that the reader knew for the thread
//! when the hit was made. If it knew none, it counts under the name that the reader found in the first round
//! after the hit. Does not: decide about calls that were recorded (`crate::filter`).
//!
//! # Rows
//!
//! A row has a thread's number, and no name. In each round, steps N1 to N3 do this as well:
//!
//! - N1 Some threads are reported to have another name than a round ago. What their rows have grown since
//!   they were last settled goes to the name of a round ago ([`Settled`](crate::aggregation::Settled)).
//! - N2 Names of new threads come from /proc. For a thread that is gone they come from the kernel's records:
//!   a thread begins with the name of the thread that made it.
//! - N3 is the same as for records.
//!
//! So a hit between a renaming and the next round counts under the old name. A hit of a thread that began
//! since the last round counts under its last name. What is not settled yet counts under the name that its
//! thread has now. Interleavings:
//!
//! - *A hit between N1's reading of the rows and N3* counts under the new name, which is right.
//! - *The number of a thread that ended is reused*: what its rows grew counts for the first thread until N1.
//! - *The kernel reports nothing, or records were lost*: all names are read again. A thread that came and
//!   went in between has no name, and its hits are reported under none.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_patch::{Attached, Segment};
use trapline_tracee::{Changed, NameWatcher};

use super::site_table::{SiteTable, Tracked};
use super::target_process::TargetProcess;
use crate::aggregation::TableContents;
use crate::maps::MapTable;
use crate::report::By;
use crate::session_request::{HitAction, SessionRequest};
use crate::threads::{Names, Thread};

/// How often names are read again: where the kernel reports changes, and where it does not.
const CHECK: Duration = Duration::from_secs(1);
const CHECK_UNREPORTED: Duration = Duration::from_millis(50);

/// Threads with names that decide something.
#[derive(Debug)]
struct Called {
    /// Names that some filter asks for.
    wanted: HashSet<String>,
    watcher: Option<NameWatcher>,
    /// Threads in the pass-over tables, by the number that they see themselves.
    over: HashSet<u32>,
    checked: Instant,
    /// Grouping of the rows, where hits are aggregated by thread; `None` where they are not.
    rows: Option<Option<By>>,
}

impl Called {
    fn new(pid: u32, wanted: HashSet<String>, rows: Option<Option<By>>) -> Self {
        // Without the right to watch names, they are read again and again.
        let watcher = NameWatcher::new(pid).ok();
        Self { wanted, watcher, over: HashSet::new(), checked: Instant::now(), rows }
    }
    /// N1: takes threads out of the tables where their entries are no longer true. Returns threads with names
    /// that may be new.
    fn read_changes(
        &mut self,
        target: &TargetProcess,
        names: &mut Names,
        segments: &[Segment],
    ) -> HashSet<u32> {
        let (mut whole, mut changed_threads) = (true, HashSet::new());
        if let Some(mut watcher) = self.watcher.take() {
            whole = watcher.poll(|tid, changed| {
                let lives = changed != Changed::Ended;
                let Some(seen) = names.note_change(tid, changed) else { return };
                self.take_back(seen, segments);
                if lives {
                    changed_threads.insert(seen)
                } else {
                    changed_threads.remove(&seen)
                };
            });
            self.watcher = Some(watcher);
        }
        let every = if self.watcher.is_some() { CHECK } else { CHECK_UNREPORTED };
        if !whole || self.checked.elapsed() >= every {
            self.checked = Instant::now();
            let all = self.rows.is_some() && (!whole || self.watcher.is_none());
            let alive = names.read(target.pid(), &target.children, (!all).then_some(&self.over));
            if all {
                changed_threads.extend(&alive);
            }
            let stale = |tid: &u32| !alive.contains(tid) || self.is_wanted(*tid, names);
            let stale: Vec<u32> = self.over.iter().copied().filter(stale).collect();
            stale.into_iter().for_each(|tid| self.take_back(tid, segments));
        }
        changed_threads
    }
    /// N3: adds threads to the tables if no filter asks for their names.
    fn note(&mut self, threads: &HashSet<u32>, names: &Names, segments: &[Segment]) {
        // Without a filter by name, no thread is passed over.
        for &tid in threads.iter().filter(|_| !self.wanted.is_empty()) {
            if !self.over.contains(&tid) && names.is_known(tid) && !self.is_wanted(tid, names) {
                self.over.insert(tid);
                for segment in segments {
                    segment.layout().names.pass_over(segment.view(), tid);
                }
            }
        }
    }
    fn take_back(&mut self, tid: u32, segments: &[Segment]) {
        self.over.remove(&tid);
        segments.iter().for_each(|segment| segment.layout().names.take_back(segment.view(), tid));
    }
    /// Whether neither filters nor rows depend on names.
    fn is_only_for_names(&self) -> bool {
        self.wanted.is_empty() && self.rows.is_none()
    }
    fn is_wanted(&self, tid: u32, names: &Names) -> bool {
        names.get(tid).comm.is_some_and(|comm| self.wanted.contains(&comm))
    }
}

/// What is known of the threads of one process.
#[derive(Debug, Default)]
pub(super) struct ThreadNames {
    known: Names,
    called: Option<Called>,
}

impl ThreadNames {
    /// Names that were read.
    pub(super) const fn known(&self) -> &Names {
        &self.known
    }
    /// The same, taken out.
    pub(super) fn take(&mut self) -> Names {
        std::mem::take(&mut self.known)
    }
    /// What is known of a thread, by the number that it sees itself.
    pub(super) fn get(&self, tid: u32) -> Thread {
        self.known.get(tid)
    }
    /// Starts watching thread names. Called before a process is patched, so no change after that is missed.
    pub(super) fn listen(&mut self, pid: u32, requested: &SessionRequest) {
        let names = requested.filters.iter().flat_map(|filter| filter.names().iter().cloned());
        let wanted: HashSet<String> = names.collect();
        let rows = matches!(requested.hit_action, HitAction::Tally { .. }).then_some(requested.by);
        let in_rows = requested.by == Some(By::ThreadName) && requested.hit_action.is_reported();
        if let Some(everyone) = &requested.everyone {
            self.known.ask(pid, everyone.clone());
        }
        let in_maps = requested.everyone.is_none() && requested.maps.iter().any(MapTable::names_threads);
        let matter = !wanted.is_empty() || in_rows || in_maps || requested.follows_threads;
        if self.called.is_none() && matter {
            self.known.follow(pid);
            self.called = Some(Called::new(pid, wanted, rows));
        }
    }
    /// After an attach: enters all threads of the process into the tables of all segments.
    pub(super) fn note_all(&mut self, target: &TargetProcess, segments: &[Segment]) {
        let Some(called) = &mut self.called else { return };
        called.over.clear();
        let alive = self.known.read(target.pid(), &target.children, None);
        called.note(&alive, &self.known, segments);
    }
    /// N1; and N3 where rows belong to threads.
    pub(super) fn read(&mut self, target: &TargetProcess, sites: &mut SiteTable, attached: &Attached) {
        let Some(called) = &mut self.called else { return };
        let changed_threads = called.read_changes(target, &mut self.known, attached.segments());
        let rows = called.rows;
        let renamed = self.known.take_renamed();
        let Some(by) = rows else { return };
        if !renamed.is_empty() {
            sites.settle(attached, by, &renamed);
        }
        if self.known.are_many() {
            self.forget(target, sites, attached, by);
        }
        self.note(&changed_threads, attached.segments());
    }
    /// N3, for threads with names that were looked up.
    pub(super) fn note(&mut self, threads: &HashSet<u32>, segments: &[Segment]) {
        let Some(called) = &mut self.called else { return };
        called.note(threads, &self.known, segments);
    }
    /// Grouping of rows that are settled by name.
    pub(super) fn rows_by(&self) -> Option<By> {
        self.called.as_ref().and_then(|called| called.rows).flatten()
    }
    /// Looks up the names of these threads; with `again`, also of those that have one. A thread that is gone was
    /// reported when it began, before it could hit anything.
    pub(super) fn look(&mut self, target: &TargetProcess, threads: &HashSet<u32>, again: bool) {
        self.known.look(target.pid(), &target.children, threads, again);
        let is_unknown = |tid: &u32| !self.known.is_known(*tid);
        if threads.iter().any(is_unknown)
            && let Some(called) = self.called.as_mut().filter(|called| called.is_only_for_names())
        {
            called.read_changes(target, &mut self.known, &[]);
        }
    }
    /// Looks up the names of threads that hit something, before they end.
    pub(super) fn look_at_rows(&mut self, target: &TargetProcess, segments: &[Segment], again: bool) {
        let rows = segments.iter().flat_map(|segment| segment.threads().rows(segment.view()));
        let counted: HashSet<u32> = rows.filter_map(|(_, thread)| thread).collect();
        if !counted.is_empty() {
            self.look(target, &counted, again);
        }
    }
    /// Looks up the names of threads that have rows in these tables.
    pub(super) fn look_at_tables(&mut self, target: &TargetProcess, contents: &[(&Tracked, TableContents)]) {
        self.look(target, &owners(contents), false);
    }
    /// Name of a thread. `tid` is the number that the tracer sees.
    pub(super) fn name(&mut self, target: &TargetProcess, tid: u32) -> Option<String> {
        let tid = self.known.seen(tid).unwrap_or(tid);
        self.look(target, &std::iter::once(tid).collect(), false);
        self.known.get(tid).comm
    }
    /// Process of a thread, if it was read. `tid` is the number that the tracer sees.
    pub(super) fn process(&mut self, target: &TargetProcess, tid: u32) -> Option<u32> {
        let tid = self.known.seen(tid).unwrap_or(tid);
        self.look(target, &std::iter::once(tid).collect(), false);
        self.known.get(tid).process
    }
    /// Forgets names of threads that are gone and have no row.
    fn forget(&mut self, target: &TargetProcess, sites: &SiteTable, attached: &Attached, by: Option<By>) {
        self.known.keep(&owners(&sites.contents(attached, by)));
        self.known.read(target.pid(), &target.children, None);
    }
}

/// Threads that have rows in these tables.
fn owners(contents: &[(&Tracked, TableContents)]) -> HashSet<u32> {
    contents.iter().flat_map(|(_, one)| one.hits.keys().filter_map(|row| row.thread)).collect()
}
