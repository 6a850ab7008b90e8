//! Accesses, counted by writer.
//!
//! In: accesses. Out: how many there were of each writer and place, and the values that conditions use.
//! Memory is bounded in threads by [`MAX_TIDS`]. Does not: print.

use std::collections::HashMap;
use std::rc::Rc;

use trapline::watch::{AccessKind, Accessed, Facts, Watched, Where};
use trapline_order::Order as _;

use super::value::typed;

/// What accesses are grouped by: a writer of one place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    /// Index of the place.
    pub(crate) watched: usize,
    /// The thread's name.
    pub(crate) comm: Rc<str>,
    /// The kind of access.
    pub(crate) kind: AccessKind,
    /// The code that made the access.
    pub(crate) by: Rc<Where>,
}

/// The accesses of one writer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accesses {
    /// Their number.
    pub(crate) count: u64,
    /// The threads that made them.
    pub(crate) tids: Vec<u32>,
}

/// Counts over all accesses.
#[derive(Debug)]
pub(crate) struct Tallied {
    /// The watched places.
    pub(crate) watched: Vec<Watched>,
    writers: HashMap<Writer, Accesses>,
    /// Accesses shown or counted.
    pub(crate) shown: u64,
    /// Those of them with an exact value.
    pub(crate) exact: u64,
    /// Accesses for which the condition could not be decided.
    pub(crate) undecided: u64,
}

/// Limit for the threads that are listed for one writer.
const MAX_TIDS: usize = 10_000;

impl Tallied {
    /// Counts of nothing yet.
    pub(crate) fn new(watched: &[Watched]) -> Self {
        Self { watched: watched.to_vec(), writers: HashMap::new(), shown: 0, exact: 0, undecided: 0 }
    }
    /// Counts one access.
    pub(crate) fn add(&mut self, one: &Accessed) {
        self.shown += 1;
        self.exact += u64::from(one.event.change.how.is_exact());
        let writer = Writer {
            watched: one.watched,
            comm: one.event.comm.clone(),
            kind: one.event.kind,
            by: one.by.clone(),
        };
        let accesses = self.writers.entry(writer).or_default();
        accesses.count += 1;
        if !accesses.tids.contains(&one.event.tid) && accesses.tids.len() < MAX_TIDS {
            accesses.tids.push(one.event.tid);
        }
    }
    /// Writers, most accesses first.
    pub(crate) fn writers(&self) -> Vec<(&Writer, &Accesses)> {
        let mut all: Vec<(&Writer, &Accesses)> = self.writers.iter().collect();
        all.order_by(|a, b| b.1.count.cmp(&a.1.count).then_with(|| a.0.by.function.cmp(&b.0.by.function)));
        all
    }
    /// The number of accesses of one place.
    pub(crate) fn of_place(&self, watched: usize) -> u64 {
        self.writers.iter().filter(|(writer, _)| writer.watched == watched).map(|(_, all)| all.count).sum()
    }
    /// The values that conditions can use.
    pub(crate) fn facts(&self, one: &Accessed) -> Facts {
        let watched = &self.watched[one.watched];
        let number = |value: Option<u64>| value.map(|bits| typed(bits, watched).integer());
        let change = one.event.change;
        Facts {
            value: number(change.after),
            old: number(change.before),
            tid: one.event.tid,
            pid: one.event.pid,
            cpu: one.event.cpu,
        }
    }
}
