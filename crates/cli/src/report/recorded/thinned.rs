//! Functions that were taken out of a recording while it ran (`record --budget`).
//!
//! In: one row for each. Out: a table, or a note. Does not: read.

use std::time::Duration;

use crate::report::number::{duration, grouped, percent, plural};
use crate::report::table::{Align, Table};

/// A function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row<'a> {
    /// From when on it is not recorded, since the begin.
    pub(crate) at: Duration,
    /// Its calls until then.
    pub(crate) calls: u64,
    /// The share of the program's time that recording cost before.
    pub(crate) share: f64,
    /// Its name.
    pub(crate) function: &'a str,
}

/// The table, with its title.
pub(crate) fn table<'a>(rows: impl Iterator<Item = Row<'a>>) -> String {
    let columns = [
        ("From", Align::Right),
        ("Calls before", Align::Right),
        ("Cost before", Align::Right),
        ("Function", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for Row { at, calls, share, function } in rows {
        let at = duration(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX));
        table.row([at, grouped(calls), percent(share), function.to_owned()]);
    }
    format!("taken out while recording, to keep the cost within --budget:\n{}", table.text())
}

/// A note for those who see calls, and not the table.
pub(crate) fn note(many: usize) -> Option<String> {
    (many > 0).then(|| {
        format!(
            "{} taken out while recording, to keep the cost within --budget: later calls are missing, and their time counts as their callers'; trapline info shows which",
            plural(many as u64, "function was", "functions were")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::{Row, table};
    use std::time::Duration;

    #[test]
    fn each_function_has_its_row() {
        let rows = [("leaf", 1_200_000, 0.31), ("other", 7, 0.0542)];
        let rows = rows.iter().map(|&(function, calls, share)| Row {
            at: Duration::from_millis(412),
            calls,
            share,
            function,
        });
        let expected = "\
taken out while recording, to keep the cost within --budget:
      From  Calls before  Cost before  Function
412.000 ms     1,200,000         31 %  leaf
412.000 ms             7        5.4 %  other
";
        assert_eq!(table(rows), expected);
    }
}
