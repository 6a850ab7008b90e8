//! Threads that a process' filters pass over for what they are called (`--comm`): the reader's side of `trapline_record::names`, which has the
//! protocol.
//!
//! In: names that filters ask for; what the kernel tells of threads; names that were read. Out: words in the tables of all segments.
//! Invariant: NAM-1. Does not: decide about calls that were recorded (`crate::filter`).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_patch::Segment;
use trapline_target::{Changed, NameWatcher};

use super::{Traced, Wishes};
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
}

impl Called {
    fn new(pid: u32, wanted: HashSet<String>) -> Self {
        // Without the right to it, names are read again and again.
        let watcher = NameWatcher::new(pid).ok();
        Self { wanted, watcher, over: HashSet::new(), checked: Instant::now() }
    }
    /// N1: takes back what is true no longer.
    fn hear(&mut self, (pid, children): (u32, &HashSet<u32>), names: &mut Names, segments: &[Segment]) {
        let mut whole = true;
        if let Some(mut watcher) = self.watcher.take() {
            whole = watcher.poll(|tid, changed| {
                let seen = match changed {
                    Changed::Name(name) => names.changed(tid, Some(name)),
                    Changed::Begun => names.changed(tid, None),
                    Changed::Ended => names.seen(tid),
                };
                seen.into_iter().for_each(|seen| self.take_back(seen, segments));
            });
            self.watcher = Some(watcher);
        }
        let every = if self.watcher.is_some() { CHECK } else { CHECK_UNTOLD };
        if !whole || self.checked.elapsed() >= every {
            self.checked = Instant::now();
            let alive = names.read(pid, children, Some(&self.over));
            let stale = |tid: &u32| !alive.contains(tid) || self.is_wanted(*tid, names);
            let stale: Vec<u32> = self.over.iter().copied().filter(stale).collect();
            stale.into_iter().for_each(|tid| self.take_back(tid, segments));
        }
    }
    /// N3: notes who is called otherwise.
    fn note(&mut self, threads: &HashSet<u32>, names: &Names, segments: &[Segment]) {
        for &tid in threads {
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
        if self.called.is_none() && !wanted.is_empty() {
            self.called = Some(Called::new(self.process.pid(), wanted));
        }
    }
    /// Behind an attach: all threads that there are, in all segments.
    pub(super) fn note_all_names(&mut self) {
        let Some(called) = &mut self.called else { return };
        let (pid, segments) = (self.process.pid(), self.attached.segments());
        called.hear((pid, &self.children), &mut self.names, segments);
        called.over.clear();
        let alive = self.names.read(pid, &self.children, None);
        called.note(&alive, &self.names, segments);
    }
    /// N1.
    pub(super) fn hear_of_names(&mut self) {
        let Some(called) = &mut self.called else { return };
        let process = (self.process.pid(), &self.children);
        called.hear(process, &mut self.names, self.attached.segments());
    }
    /// N3, of threads whose names were looked up.
    pub(super) fn note_names(&mut self, threads: &HashSet<u32>) {
        let Some(called) = &mut self.called else { return };
        called.note(threads, &self.names, self.attached.segments());
    }
}
