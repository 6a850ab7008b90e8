//! The table as plain lines, where there is no terminal: one table for each interval, and one for the whole
//! run.

use trapline::ProcessReport;

use super::model::{Model, TopRow};
use super::view::{Column, sort};
use crate::report::Renderer;
use crate::report::number::{duration, grouped, plural, rate};
use crate::report::table::{Align, Table};

/// Limit for the rows of an interval's table.
const LIVE_ROWS: usize = 40;

/// Writes tables, one after the other.
#[derive(Debug)]
pub(crate) struct Lines {
    model: Model,
    timed: bool,
    sort: Column,
}

impl Lines {
    pub(crate) fn new(timed: bool, sort: Column) -> Self {
        Self { model: Model::default(), timed, sort }
    }
    /// Continues with the model that a screen has shown.
    pub(crate) const fn after(model: Model, timed: bool, sort: Column) -> Self {
        Self { model, timed, sort }
    }
    fn cells(&self, row: &TopRow, live: bool) -> Vec<String> {
        let mut cells = vec![rate(if live { row.rate } else { row.mean_rate }), grouped(row.total)];
        if self.timed {
            let times = if live { row.recent } else { row.whole };
            let shown = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), duration);
            cells.extend([shown(times.map(|times| times.p50)), shown(times.map(|times| times.p99))]);
        }
        cells.push(row.label.clone());
        cells
    }
    fn columns(&self) -> Vec<(&'static str, Align)> {
        let right = |name| (name, Align::Right);
        let mut columns = if self.timed {
            ["CALLS/S", "CALLS", "P50", "P99"].map(right).to_vec()
        } else {
            ["HITS/S", "HITS"].map(right).to_vec()
        };
        columns.push(("FUNCTION", Align::Left));
        columns
    }
}

impl Renderer for Lines {
    fn report(&mut self, report: &ProcessReport, live: bool, _: Option<&str>) -> String {
        self.model.feed(std::slice::from_ref(report));
        let shown =
            |row: &&TopRow| row.pid == report.pid && if live { row.rate > 0.0 } else { row.total > 0 };
        let of_process = self.model.rows().iter().filter(|row| row.pid == report.pid).count();
        let mut rows: Vec<&TopRow> = self.model.rows().iter().filter(shown).collect();
        sort(&mut rows, if live || self.sort == Column::Name { self.sort } else { Column::Total }, false);
        let mut table = Table::new(&self.columns());
        let most = if live { LIVE_ROWS } else { usize::MAX };
        rows.iter().take(most).for_each(|row| table.row(self.cells(row, live)));
        let table = if rows.is_empty() { String::new() } else { table.text() };
        let rest = match rows.len().saturating_sub(most) {
            0 => String::new(),
            rest => format!("; {} more rows", grouped(rest as u64)),
        };
        let called = plural(rows.len() as u64, "function", "functions");
        let quiet = grouped((of_process - rows.len()) as u64);
        let word = if self.timed { "call" } else { "hit" };
        let head = format!("{} ({}), {:.2} s", report.name, report.pid, report.seconds);
        format!("{head}\n{table}{called}, {quiet} without a {word}{rest}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::Lines;
    use crate::report::Renderer as _;
    use crate::report::samples::{sample, timed};
    use crate::top::model::tests::later;
    use crate::top::view::Column;

    #[test]
    fn an_interval_and_the_whole() {
        let mut lines = Lines::new(false, Column::Rate);
        lines.report(&sample(), true, None);
        let expected = "victim (42), 3.00 s
HITS/S   HITS  FUNCTION
   300  1,800  libfoo:bar
1 function, 2 without a hit
";
        assert_eq!(lines.report(&later([0, 0, 300], 1.0), true, None), expected);
        let expected = "victim (42), 3.00 s
HITS/S   HITS  FUNCTION
   600  1,800  libfoo:bar
   6.7     20  work
2 functions, 1 without a hit
";
        assert_eq!(lines.report(&later([0, 0, 300], 1.0), false, None), expected);
    }

    #[test]
    fn timed_calls_have_percentiles() {
        let mut lines = Lines::new(true, Column::P99);
        let expected = "victim (42), 2.00 s
CALLS/S  CALLS     P50     P99  FUNCTION
    3.0      3  102 ns  310 ns  work
1 function, 0 without a call
";
        assert_eq!(lines.report(&timed(), true, None), expected);
        assert_eq!(
            lines.report(&timed(), true, None),
            "victim (42), 2.00 s\n0 functions, 1 without a call\n"
        );
    }
}
