//! Threads by what they are called: those that a process' filters pass over (`--comm`), the reader's side of `trapline_record::names`, which has the
//! protocol; and rows of hits that are told apart by name.
//!
//! In: names that filters ask for; what the kernel tells of threads; names that were read. Out: words in the tables of all segments; rows of threads that
//! got another name, settled to the old one. Invariants: NAM-1; NAM-2 a hit in a row of a thread is of the name that the reader knew of it when
//! the hit was made, or else of that which it learnt in the first round behind it. Does not: decide about calls that were recorded (`crate::filter`).
//!
//! # Rows
//!
//! Rows have a thread's number, and no name. In each round, N1 to N3 are these, too:
//!
//! N1 Of the threads that are told to be called otherwise than a round ago, what their rows have grown since they were last settled goes to
//!    the name of a round ago ([`Settled`](crate::tallies::Settled)). N2 New threads' names are what /proc says, or, of those that are gone, what the kernel told: a thread
//!    begins with the name of who made it. N3 as of records.
//!
//! So a hit between a renaming and the next round is of the old name; one of a thread that began since the last round is of its last name. What has not
//! been settled is of the name that its thread has now. Interleavings: *a hit between N1's reading of the rows and N3* is of the new name, as it is. *The number
//! of a thread that ended is had again*: what its rows grew is the first one's until N1. *Nothing can be told, or was lost*: all names are read
//! again; a thread that came and went between has none, and its hits are told as nobody's.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use trapline_patch::Segment;
use trapline_target::{Changed, NameWatcher};

use super::{Aim, Traced, Wishes};
use crate::report::By;
use crate::threads::Names;

/// How often names are read again where the kernel tells of changes, and where it does not.
const CHECK: Duration = Duration::from_secs(1);
const CHECK_UNTOLD: Duration = Duration::from_millis(50);

/// What is known of one process' threads.
#[derive(Debug)]
pub(super) struct Called {
    /// Names that some filter asks for.
    wanted: HashSet<String>,
    watcher: Option<NameWatcher>,
    /// Threads that have words, by the number that they see themselves.
    over: HashSet<u32>,
    checked: Instant,
    /// Hits are added up in rows of threads, which are split so.
    rows: Option<Option<By>>,
}

impl Called {
    fn new(pid: u32, wanted: HashSet<String>, rows: Option<Option<By>>) -> Self {
        // Without the right to it, names are read again and again.
        let watcher = NameWatcher::new(pid).ok();
        Self { wanted, watcher, over: HashSet::new(), checked: Instant::now(), rows }
    }
    /// N1: takes back what is true no longer. Threads whose names may be new.
    fn hear(
        &mut self,
        (pid, children): (u32, &HashSet<u32>),
        names: &mut Names,
        segments: &[Segment],
    ) -> HashSet<u32> {
        let (mut whole, mut told) = (true, HashSet::new());
        if let Some(mut watcher) = self.watcher.take() {
            whole = watcher.poll(|tid, changed| {
                let lives = changed != Changed::Ended;
                let Some(seen) = names.told(tid, changed) else { return };
                self.take_back(seen, segments);
                if lives {
                    told.insert(seen)
                } else {
                    told.remove(&seen)
                };
            });
            self.watcher = Some(watcher);
        }
        let every = if self.watcher.is_some() { CHECK } else { CHECK_UNTOLD };
        if !whole || self.checked.elapsed() >= every {
            self.checked = Instant::now();
            let all = self.rows.is_some() && (!whole || self.watcher.is_none());
            let alive = names.read(pid, children, (!all).then_some(&self.over));
            if all {
                told.extend(&alive);
            }
            let stale = |tid: &u32| !alive.contains(tid) || self.is_wanted(*tid, names);
            let stale: Vec<u32> = self.over.iter().copied().filter(stale).collect();
            stale.into_iter().for_each(|tid| self.take_back(tid, segments));
        }
        told
    }
    /// N3: notes who is called otherwise.
    fn note(&mut self, threads: &HashSet<u32>, names: &Names, segments: &[Segment]) {
        // Where no filter asks, nobody is passed over.
        for &tid in threads.iter().filter(|_| !self.wanted.is_empty()) {
            if !self.over.contains(&tid) && names.is_known(tid) && !self.is_wanted(tid, names) {
                self.over.insert(tid);
                for home in segments {
                    home.layout().names.pass_over(home.view(), tid);
                }
            }
        }
    }
    fn take_back(&mut self, tid: u32, segments: &[Segment]) {
        self.over.remove(&tid);
        segments.iter().for_each(|home| home.layout().names.take_back(home.view(), tid));
    }
    fn is_wanted(&self, tid: u32, names: &Names) -> bool {
        names.get(tid).comm.is_some_and(|comm| self.wanted.contains(&comm))
    }
}

impl Traced {
    /// To be called before a process is patched: from now on the kernel tells of its threads.
    pub(super) fn listen(&mut self, wishes: &Wishes) {
        let names = wishes.filters.iter().flat_map(|filter| filter.names().iter().cloned());
        let wanted: HashSet<String> = names.collect();
        let rows = matches!(wishes.aim, Aim::Tally { .. }).then_some(wishes.by);
        let matter = !wanted.is_empty() || wishes.by == Some(By::ThreadName) && wishes.aim.is_told();
        if self.called.is_none() && matter {
            let pid = self.process.pid();
            self.names.follow(pid);
            self.called = Some(Called::new(pid, wanted, rows));
        }
    }
    /// Behind an attach: all threads that there are, in all segments.
    pub(super) fn note_all_names(&mut self) {
        self.hear_of_names();
        let Some(called) = &mut self.called else { return };
        called.over.clear();
        let alive = self.names.read(self.process.pid(), &self.children, None);
        called.note(&alive, &self.names, self.attached.segments());
    }
    /// N1; and N3 where rows are threads'.
    pub(crate) fn hear_of_names(&mut self) {
        let Some(called) = &mut self.called else { return };
        let process = (self.process.pid(), &self.children);
        let told = called.hear(process, &mut self.names, self.attached.segments());
        let rows = called.rows;
        let renamed = self.names.take_renamed();
        let Some(by) = rows else { return };
        if !renamed.is_empty() {
            self.settle(by, &renamed);
        }
        if self.names.are_many() {
            self.forget_names(by);
        }
        self.note_names(&told);
    }
    /// N3, of threads whose names were looked up.
    pub(super) fn note_names(&mut self, threads: &HashSet<u32>) {
        let Some(called) = &mut self.called else { return };
        called.note(threads, &self.names, self.attached.segments());
    }
    /// How rows are split that are settled.
    pub(super) fn rows_by(&self) -> Option<By> {
        self.called.as_ref().and_then(|called| called.rows).flatten()
    }
    /// N1, of rows: what these threads were called.
    fn settle(&mut self, by: Option<By>, renamed: &HashMap<u32, Option<String>>) {
        for (index, gathered) in self.gathered(by) {
            self.sites[index].settled.settle(&gathered, renamed);
        }
    }
    /// Threads that are gone, and have no row, need no name.
    fn forget_names(&mut self, by: Option<By>) {
        let gathered = self.gathered(by);
        let owners = gathered.iter().flat_map(|(_, one)| one.hits.keys().filter_map(|row| row.thread));
        self.names.keep(&owners.collect());
        self.names.read(self.process.pid(), &self.children, None);
    }
}
