//! Births of threads, and which of the new threads inherited everything.
//!
//! In: the kernel's records of tasks. Out: each record once, in the order of time, and whether a thread is
//! *whole*. It is whole if it inherited every breakpoint that its parent was given. Does not: arm.
//!
//! A thread's dummy events are opened when all its breakpoints are open. One lock of the kernel (that of the
//! parent's events) orders this against every inheriting. A thread that the parent *M* begins to create after
//! that is whole. A thread that *M* was creating at that moment may have a part; its record comes at the end
//! of the creation, and may carry a later time. But *M* creates one thread after the other. So of the births
//! that *M*'s own dummy events record, only the first can be of that kind, and all later ones are whole. So is
//! the first, once it is known that *M* is not in such a creation ([`crate::settle`]). What a whole thread
//! creates is whole. A thread that is armed after it inherited some events is recorded twice,
//! by its parent's dummy events and by its own; the parent's copy is left out.

use std::collections::HashMap;

use trapline_order::Order as _;
use trapline_tracee::perf::{Followed, NotArmed, TaskRings};

use crate::record::{Task, TaskRecord, task};

/// A thread with dummy events of its own.
#[derive(Clone, Copy, Debug)]
struct Own {
    /// Number of the time that it was followed: after an exec it may be followed again.
    turn: u32,
    /// Time of the earliest known birth that its dummy events recorded.
    first_ns: u64,
}

/// Births, as the records come.
#[derive(Debug)]
pub(crate) struct Births {
    rings: TaskRings,
    followed: Vec<Followed>,
    lineage: Lineage,
    pending: Vec<TaskRecord>,
}

/// Determines which threads are whole.
#[derive(Debug, Default)]
struct Lineage {
    /// Event identifier → the thread for which it was opened, and that thread's turn.
    ids: HashMap<u64, (u32, u32)>,
    own: HashMap<u32, Own>,
    /// Whole threads → their processes.
    whole: HashMap<u32, u32>,
    turns: u32,
}

impl Births {
    pub(crate) fn new(rings: TaskRings) -> Self {
        Self { rings, followed: Vec::new(), lineage: Lineage::default(), pending: Vec::new() }
    }
    pub(crate) const fn rings(&self) -> &TaskRings {
        &self.rings
    }
    /// Follows a thread after all its breakpoints were opened.
    pub(crate) fn follow(&mut self, tid: u32) -> Result<(), NotArmed> {
        let followed = self.rings.follow(tid)?;
        self.lineage.follow(tid, followed.ids());
        self.followed.push(followed);
        Ok(())
    }
    /// A position to which [`Self::forget`] can go back.
    pub(crate) const fn mark(&self) -> usize {
        self.followed.len()
    }
    /// Stops following all threads that were added after `mark`, and forgets which threads of the process are
    /// whole.
    pub(crate) fn forget(&mut self, mark: usize, pid: u32) {
        self.followed.drain(mark..).for_each(|gone| self.lineage.forget(gone.ids()));
        self.lineage.whole.retain(|_, of| *of != pid);
    }
    /// Notes that what these threads create from now on is whole. All records of what they created before were
    /// read ([`Self::read`]).
    pub(crate) fn settle(&mut self, makers: &[u32]) {
        for tid in makers {
            self.lineage.settle(*tid);
        }
    }
    /// The number of records that were read and not taken yet.
    pub(crate) const fn unread(&self) -> usize {
        self.pending.len()
    }
    /// Notes that the first of these records need no arming: of each thread that they name, a listing has shown since
    /// that it is armed, or that it has ended.
    pub(crate) fn armed_up_to(&mut self, records: usize) {
        self.pending[..records].iter_mut().for_each(|record| record.whole = true);
    }
    /// Whether a thread has everything that its maker has.
    pub(crate) fn is_whole(&self, tid: u32) -> bool {
        self.lineage.whole.contains_key(&tid)
    }
    /// Reads new records; returns false when the kernel dropped some.
    pub(crate) fn read(&mut self) -> bool {
        let (mut batch, mut lost) = (Vec::new(), 0);
        let sound = self.rings.drain(|kind, misc, body| match task(kind, misc, body) {
            Ok(record) => batch.extend(record),
            Err(dropped) => lost += dropped,
        });
        batch.order_by_key(|record| record.time_ns);
        batch.retain_mut(|record| self.lineage.note(record));
        self.pending.append(&mut batch);
        sound && lost == 0
    }
    /// Whether a record that was read and not taken yet shows that a process executed another program.
    pub(crate) fn has_exec(&self, pid: u32) -> bool {
        self.pending.iter().any(|record| record.pid == pid && matches!(record.what, Task::Exec(_)))
    }
    /// The records that were read and not taken yet.
    pub(crate) fn take(&mut self) -> Vec<TaskRecord> {
        std::mem::take(&mut self.pending)
    }
}

impl Lineage {
    fn follow(&mut self, tid: u32, ids: &[u64]) {
        self.turns += 1;
        self.ids.extend(ids.iter().map(|&id| (id, (tid, self.turns))));
        self.own.insert(tid, Own { turn: self.turns, first_ns: u64::MAX });
    }
    fn settle(&mut self, tid: u32) {
        if let Some(own) = self.own.get_mut(&tid) {
            own.first_ns = 0;
        }
    }
    fn forget(&mut self, ids: &[u64]) {
        for id in ids {
            if let Some((tid, turn)) = self.ids.remove(id)
                && self.own.get(&tid).is_some_and(|own| own.turn == turn)
            {
                self.own.remove(&tid);
            }
        }
    }
    /// Updates the state by a record; returns false for the second copy of one.
    fn note(&mut self, record: &mut TaskRecord) -> bool {
        if !self.is_first_copy(record) {
            return false;
        }
        match record.what {
            Task::Fork { parent, .. } => {
                let later = self.own.get_mut(&parent).is_some_and(|maker| {
                    let later = maker.first_ns < record.time_ns;
                    maker.first_ns = maker.first_ns.min(record.time_ns);
                    later
                });
                record.whole = later || self.whole.contains_key(&parent);
                if record.whole {
                    self.whole.insert(record.tid, record.pid);
                } else {
                    self.whole.remove(&record.tid);
                }
            }
            Task::Exit => {
                self.own.remove(&record.tid);
                self.whole.remove(&record.tid);
            }
            // Its breakpoints are gone, those inherited from its parents too.
            Task::Exec(_) => {
                self.own.remove(&record.tid);
                self.whole.retain(|_, of| *of != record.pid);
            }
            Task::Comm(_) => {}
        }
        true
    }
    fn is_first_copy(&self, record: &TaskRecord) -> bool {
        let Some(&(opened_for, turn)) = self.ids.get(&record.id) else { return false };
        match self.own.get(&record.by) {
            Some(own) => (opened_for, turn) == (record.by, own.turn),
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Lineage;
    use crate::record::{Task, TaskRecord};

    const PID: u32 = 10;

    fn task_record(what: Task, tid: u32, by: u32, time_ns: u64, id: u64) -> TaskRecord {
        TaskRecord { what, pid: PID, tid, by, time_ns, id, whole: false }
    }

    fn born(maker: u32, tid: u32, time_ns: u64, id: u64) -> TaskRecord {
        task_record(Task::Fork { parent: maker, parent_pid: PID }, tid, maker, time_ns, id)
    }

    #[test]
    fn all_but_the_first_birth_of_an_armed_thread_are_whole_with_their_own() {
        let mut lineage = Lineage::default();
        lineage.follow(PID, &[1, 2]);
        assert!(lineage.note(&mut born(PID, 11, 100, 1)));
        // Thread 11 may have been created partly when its parent was armed. The same holds for threads that
        // it creates.
        assert!(lineage.note(&mut born(11, 12, 110, 1)));
        assert!(lineage.note(&mut born(PID, 13, 120, 2)));
        assert!(lineage.note(&mut born(13, 14, 130, 2)));
        let whole = |lineage: &Lineage| {
            let mut all: Vec<u32> = lineage.whole.keys().copied().collect();
            all.sort_unstable();
            all
        };
        assert_eq!(whole(&lineage), [13, 14]);
        // A record of one CPU's ring may come late. An earlier birth then becomes the first one, and is not
        // whole.
        assert!(lineage.note(&mut born(PID, 15, 90, 1)));
        assert_eq!(whole(&lineage), [13, 14]);
        // The number is used again, for another thread.
        assert!(lineage.note(&mut task_record(Task::Exit, 14, 14, 140, 2)));
        assert!(lineage.note(&mut born(12, 14, 150, 1)));
        assert_eq!(whole(&lineage), [13]);
        assert!(lineage.note(&mut task_record(Task::Exec("new".into()), PID, PID, 160, 1)));
        assert!(lineage.note(&mut born(PID, 16, 170, 1)));
        assert_eq!(whole(&lineage), [0; 0], "what a new program makes has inherited no breakpoint");
    }

    #[test]
    fn what_a_settled_thread_creates_is_whole_from_its_first_birth_on() {
        let mut lineage = Lineage::default();
        lineage.follow(PID, &[1]);
        let mut before = born(PID, 11, 100, 1);
        assert!(lineage.note(&mut before));
        lineage.settle(PID);
        let mut after = born(PID, 12, 110, 1);
        assert!(lineage.note(&mut after));
        lineage.follow(20, &[2]);
        lineage.settle(20);
        let mut first = born(20, 21, 120, 2);
        assert!(lineage.note(&mut first));
        assert_eq!((before.whole, after.whole, first.whole), (false, true, true));
    }

    #[test]
    fn a_followed_process_reports_by_its_own_events_alone() {
        let mut lineage = Lineage::default();
        lineage.follow(PID, &[1]);
        assert!(lineage.note(&mut born(PID, 11, 100, 1)));
        lineage.follow(11, &[2]);
        assert!(!lineage.note(&mut born(11, 12, 110, 1)), "a copy by what it inherited");
        assert!(lineage.note(&mut born(11, 12, 111, 2)));
        assert!(!lineage.whole.contains_key(&12), "two copies are not two births");
        lineage.follow(11, &[3]);
        assert!(!lineage.note(&mut born(11, 13, 120, 2)), "by its former events");
        lineage.forget(&[3]);
        assert!(!lineage.note(&mut born(11, 14, 130, 3)), "it belongs to no target");
    }
}
