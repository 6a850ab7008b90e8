//! Calls, total time and own time of each function, in the form of `uftrace report`, or as JSON lines.
//!
//! In: calls as they end. Out: a table or lines at the end. Invariant: the calls of a function are its recorded entries.
//! Does not: know files.

use std::collections::HashMap;

use serde::Serialize;
use trapline::recorded::{Begun, Ended, Function, Ticks, Visit};
use trapline_order::Order as _;

use super::{Names, Text};
use crate::args::command::record::Sort;
use crate::report::json::{SCHEMA, line};
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
    json: bool,
    names: Names,
    sums: Vec<Sums>,
    lines: Vec<u8>,
}

/// A line of JSON.
#[derive(Serialize)]
struct Row<'a> {
    r#type: &'static str,
    schema: u32,
    function: &'a str,
    calls: u64,
    total_ns: u64,
    self_ns: u64,
}

impl Totals {
    pub(crate) fn new(sort: Sort, json: bool) -> Self {
        Self { sort, json, names: Names::default(), sums: Vec::new(), lines: Vec::new() }
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
    fn json(&self, ticks: Ticks) -> String {
        let row = |(function, Sums { calls, total, own }): (&str, Sums)| {
            let [total_ns, self_ns] = [total, own].map(|sum| ticks.nanos(sum));
            line(&Row { r#type: "function", schema: SCHEMA, function, calls, total_ns, self_ns })
        };
        self.rows().into_iter().map(row).collect()
    }
    fn table(&self, ticks: Ticks) -> String {
        let mut table = "  Total time   Self time       Calls  Function\n".to_owned();
        table.push_str("  ==========  ==========  ==========  ====================\n");
        for (name, Sums { calls, total, own }) in self.rows() {
            let [total, own] = [total, own].map(|sum| duration(ticks.nanos(sum)));
            table.push_str(&format!("  {total:>10}  {own:>10}  {calls:>10}  {name}\n"));
        }
        table
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
        let text = if self.json { self.json(ticks) } else { self.table(ticks) };
        self.lines.extend(text.into_bytes());
    }
}
