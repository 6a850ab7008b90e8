//! Two recordings, function by function, in the form of `uftrace report --diff`.
//!
//! In: the sums of both. Out: a table of what the second one has more or less. Invariant: a function of either is in the
//! table once; what a recording has no calls of has 0 there. Does not: read.

use std::collections::BTreeSet;

use trapline::recorded::Ticks;
use trapline_order::Order as _;

use super::Totals;
use super::totals::Sums;
use crate::args::command::record::Sort;
use crate::report::number::duration;

/// One of the two.
#[derive(Debug)]
pub(crate) struct Side<'a> {
    /// Its folder.
    pub(crate) name: String,
    /// The command line by which it was made.
    pub(crate) command: String,
    /// What it has.
    pub(crate) totals: &'a Totals,
    /// Its clock.
    pub(crate) ticks: Ticks,
}

/// Total time, own time and calls of a function in both.
type Row = [[u64; 3]; 2];

/// How much more the second one is.
fn more([a, b]: [u64; 2]) -> i128 {
    i128::from(b) - i128::from(a)
}

fn column(row: &Row, nth: usize) -> [u64; 2] {
    [row[0][nth], row[1][nth]]
}

/// A time with its sign, or a number.
fn signed(difference: i128, is_time: bool) -> String {
    let (sign, size) = (if difference < 0 { '-' } else { '+' }, difference.unsigned_abs());
    let size = u64::try_from(size).unwrap_or(u64::MAX);
    if is_time { format!("{sign}{}", duration(size)) } else { format!("{sign}{size}") }
}

/// The table. `full`: with what both have.
pub(crate) fn table(sides: &[Side<'_>; 2], sort: Sort, full: bool) -> String {
    let mut text = String::from("#\n# trapline diff\n");
    for (nth, (side, what)) in sides.iter().zip(["base", "diff"]).enumerate() {
        text.push_str(&format!("#  [{nth}] {what}: {}\t(from {})\n", side.name, side.command));
    }
    text.push_str("#\n");
    let widths = if full { [35, 35, 32] } else { [11, 11, 11] };
    let heads = if full {
        ["Total time (diff)", "Self time (diff)", "Calls (diff)"]
    } else {
        ["Total time", "Self time", "Calls"]
    };
    for (head, width) in heads.into_iter().zip(widths) {
        text.push_str(&format!("   {head:>width$}"));
    }
    text.push_str("   Function\n");
    for width in widths {
        text.push_str(&format!("   {}", "=".repeat(width)));
    }
    text.push_str("   ====================\n");
    for (name, row) in rows(sides, sort) {
        for nth in 0..3 {
            let (both, is_time) = (column(&row, nth), nth < 2);
            let difference = signed(more(both), is_time);
            let [a, b] = both.map(|one| if is_time { duration(one) } else { one.to_string() });
            text.push_str(&match (full, is_time) {
                (false, _) => format!("   {difference:>11}"),
                (true, true) => format!("   {a:>10}  {b:>10}  {difference:>11}"),
                (true, false) => format!("   {a:>9}  {b:>9}  {difference:>10}"),
            });
        }
        text.push_str(&format!("   {name}\n"));
    }
    text
}

/// All functions, with the largest differences first.
fn rows<'a>(sides: &'a [Side<'a>; 2], sort: Sort) -> Vec<(&'a str, Row)> {
    let sums = sides.each_ref().map(|side| side.totals.by_name());
    let names: BTreeSet<&str> = sums.iter().flat_map(|of| of.keys().copied()).collect();
    let numbers = |nth: usize, name: &str| {
        let Sums { calls, total, own } = sums[nth].get(name).copied().unwrap_or_default();
        let nanos = |ticks| sides[nth].ticks.nanos(ticks);
        [nanos(total), nanos(own), calls]
    };
    let mut rows: Vec<_> =
        names.into_iter().map(|name| (name, [numbers(0, name), numbers(1, name)])).collect();
    let nth = match sort {
        Sort::Total => 0,
        Sort::Own => 1,
        Sort::Calls => 2,
        Sort::Name => return rows,
    };
    rows.order_by_key(|(_, row)| std::cmp::Reverse(more(column(row, nth)).unsigned_abs()));
    rows
}
