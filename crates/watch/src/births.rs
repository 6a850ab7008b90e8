//! Births of threads, and which of the born inherited everything.
//!
//! In: the kernel's records of tasks. Out: each once, in the order of time, and whether a thread is *whole*: has, from its
//! maker, every breakpoint that its maker has been given. Does not: arm.
//!
//! A thread's dummy events are opened when all its breakpoints are open, and one lock of the kernel's (of the maker's
//! events) orders that and every inheriting. What the maker *M* begins to make after that is whole. What it was making at that moment
//! may be half; its record, which comes at the end of making, may carry a later time. But *M* makes one thread after the
//! other: so of the births that *M*'s own dummies tell, only the first can be such a one, and all later are whole. What a
//! whole thread makes is whole. Of a thread armed while it had inherited some already, its maker's dummies and its own
//! tell everything twice; the maker's copy is left out.

use std::collections::HashMap;

use trapline_target::perf::{Followed, NotArmed, TaskRings};

use crate::record::{Task, TaskRecord, task};

/// A thread with dummies of its own.
#[derive(Clone, Copy, Debug)]
struct Own {
    /// Which ones: it may be followed again, after an exec.
    turn: u32,
    /// When the earliest birth known was told by them.
    first_ns: u64,
}

/// What is known of births.
#[derive(Debug)]
pub(crate) struct Births {
    rings: TaskRings,
    followed: Vec<Followed>,
    /// Event identifier → thread that it was opened for, and its turn.
    ids: HashMap<u64, (u32, u32)>,
    own: HashMap<u32, Own>,
    /// Whole threads, with their processes.
    whole: HashMap<u32, u32>,
    pending: Vec<TaskRecord>,
    turns: u32,
}

impl Births {
    pub(crate) fn new(rings: TaskRings) -> Self {
        Self {
            rings,
            followed: Vec::new(),
            ids: HashMap::new(),
            own: HashMap::new(),
            whole: HashMap::new(),
            pending: Vec::new(),
            turns: 0,
        }
    }
    pub(crate) const fn rings(&self) -> &TaskRings {
        &self.rings
    }
    /// Follows a thread whose breakpoints are all open.
    pub(crate) fn follow(&mut self, tid: u32) -> Result<(), NotArmed> {
        let followed = self.rings.follow(tid)?;
        self.turns += 1;
        self.ids.extend(followed.ids().iter().map(|&id| (id, (tid, self.turns))));
        self.own.insert(tid, Own { turn: self.turns, first_ns: u64::MAX });
        self.followed.push(followed);
        Ok(())
    }
    /// How far [`Self::forget`] has to go back.
    pub(crate) const fn mark(&self) -> usize {
        self.followed.len()
    }
    /// Nobody is followed who was not at the mark, and nobody of the process is whole.
    pub(crate) fn forget(&mut self, mark: usize, pid: u32) {
        for gone in self.followed.drain(mark..) {
            for id in gone.ids() {
                if let Some((tid, turn)) = self.ids.remove(id) {
                    self.own.remove(&tid).filter(|own| own.turn != turn).map(|own| self.own.insert(tid, own));
                }
            }
        }
        self.whole.retain(|_, of| *of != pid);
    }
    /// Whether a thread has everything that its maker has.
    pub(crate) fn is_whole(&self, tid: u32) -> bool {
        self.whole.contains_key(&tid)
    }
    /// Takes what the kernel has told since; false when it dropped something.
    pub(crate) fn read(&mut self) -> bool {
        let (mut batch, mut lost) = (Vec::new(), 0);
        let sound = self.rings.drain(|kind, misc, body| match task(kind, misc, body) {
            Ok(record) => batch.extend(record),
            Err(dropped) => lost += dropped,
        });
        batch.sort_by_key(|record| record.time_ns);
        for record in batch {
            if self.is_first_copy(&record) {
                self.learn(&record);
                self.pending.push(record);
            }
        }
        sound && lost == 0
    }
    /// Whether what was read and not yet taken says that a process runs another program.
    pub(crate) fn has_exec(&self, pid: u32) -> bool {
        self.pending.iter().any(|record| record.pid == pid && matches!(record.what, Task::Exec(_)))
    }
    /// What was read and not yet taken.
    pub(crate) fn take(&mut self) -> Vec<TaskRecord> {
        std::mem::take(&mut self.pending)
    }
    fn is_first_copy(&self, record: &TaskRecord) -> bool {
        let Some(&(opened_for, turn)) = self.ids.get(&record.id) else { return false };
        match self.own.get(&record.by) {
            Some(own) => (opened_for, turn) == (record.by, own.turn),
            None => true,
        }
    }
    fn learn(&mut self, record: &TaskRecord) {
        match record.what {
            Task::Fork { parent, .. } => {
                let later = self.own.get_mut(&parent).is_some_and(|maker| {
                    let later = maker.first_ns < record.time_ns;
                    maker.first_ns = maker.first_ns.min(record.time_ns);
                    later
                });
                if later || self.whole.contains_key(&parent) {
                    self.whole.insert(record.tid, record.pid);
                } else {
                    self.whole.remove(&record.tid);
                }
            }
            Task::Exit => {
                self.own.remove(&record.tid);
                self.whole.remove(&record.tid);
            }
            // What breakpoints it had are gone, those of its makers too.
            Task::Exec(_) => {
                self.own.remove(&record.tid);
                self.whole.retain(|_, of| *of != record.pid);
            }
            Task::Comm(_) => {}
        }
    }
}
