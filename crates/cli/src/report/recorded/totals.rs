//! Calls, total time and own time of each function, in the form of `uftrace report`.
//!
//! In: calls as they end. Out: a table at the end. Invariant: the calls of a function are its recorded entries. Does not: know
//! files.

use std::collections::HashMap;
use std::io::Write;

use trapline::recorded::{Begun, Ended, Function, Ticks, Visit};
use trapline_order::Order as _;

use super::{Names, Text};
use crate::args::command::record::Sort;
use crate::report::number::duration;

/// The sums of one function: calls, and ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) calls: u64,
    pub(super) total: u64,
    pub(super) own: u64,
}

/// The table of `report`.
#[derive(Debug)]
pub(crate) struct Totals {
    sort: Sort,
    names: Names,
    sums: Vec<Sums>,
    lines: Vec<u8>,
}

impl Totals {
    pub(crate) fn new(sort: Sort) -> Self {
        Self { sort, names: Names::default(), sums: Vec::new(), lines: Vec::new() }
    }
    /// Sums by name: several processes may have a function, and it may have been probed more than once.
    pub(super) fn by_name(&self) -> HashMap<&str, Sums> {
        let mut all: HashMap<&str, Sums> = HashMap::new();
        for (function, sums) in self.sums.iter().enumerate().filter(|(_, sums)| sums.calls > 0) {
            let all = all.entry(self.names.get(function)).or_default();
            all.calls += sums.calls;
            all.total += sums.total;
            all.own += sums.own;
        }
        all
    }
    fn rows(&self) -> Vec<(&str, Sums)> {
        let mut rows: Vec<_> = self.by_name().into_iter().collect();
        rows.order_by(|a, b| {
            let by = |of: fn(&Sums) -> u64| of(&b.1).cmp(&of(&a.1));
            let order = match self.sort {
                Sort::Total => by(|sums| sums.total),
                Sort::Own => by(|sums| sums.own),
                Sort::Calls => by(|sums| sums.calls),
                Sort::Name => std::cmp::Ordering::Equal,
            };
            order.then(a.0.cmp(b.0))
        });
        rows
    }
}

impl Visit for Totals {
    fn function(&mut self, function: &Function) {
        self.names.add(function);
        self.sums.push(Sums::default());
    }
    fn begun(&mut self, call: &Begun) {
        self.sums[call.function].calls += 1;
    }
    fn ended(&mut self, ended: &Ended) {
        let (sums, took) = (&mut self.sums[ended.call.function], ended.end - ended.call.begin);
        sums.own += took.saturating_sub(ended.within);
        if ended.is_outermost {
            sums.total += took;
        }
    }
}

impl Text for Totals {
    fn lines(&mut self) -> &mut Vec<u8> {
        &mut self.lines
    }
    fn end(&mut self, ticks: Ticks) {
        let mut lines = Vec::new();
        // Writing into memory does not fail.
        drop(writeln!(lines, "  Total time   Self time       Calls  Function"));
        drop(writeln!(lines, "  ==========  ==========  ==========  ===================="));
        for (name, Sums { calls, total, own }) in self.rows() {
            let [total, own] = [total, own].map(|sum| duration(ticks.nanos(sum)));
            drop(writeln!(lines, "  {total:>10}  {own:>10}  {calls:>10}  {name}"));
        }
        self.lines.append(&mut lines);
    }
}
