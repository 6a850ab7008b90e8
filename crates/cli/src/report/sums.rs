//! Tables of `hist --sum`, `--min`, `--max`, `--avg` and `--stats`: for people, and as fields of JSON
//! (docs/guide/json.md).
//!
//! In: number of hits, sum and extremes of groups. Out: text, or what JSON has, with their total. All numbers are
//! exact; of an average people see two decimals, and JSON has the nearest float. Does not: aggregate, or name groups.

use serde::Serialize;
use trapline::aggregation::{GroupHits, ValueSums};

use super::number::{grouped, quotient, signed};
use super::table::{Align, Table};
use crate::args::hist::Columns;

/// What the values of some hits gave; nothing if there were none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct OfHits {
    pub(super) hits: u64,
    sums: Option<ValueSums>,
}

/// The same in JSON.
#[derive(Debug, Serialize)]
pub(super) struct SumFields {
    sum: i128,
    min: i128,
    max: i128,
    avg: f64,
}

impl OfHits {
    pub(super) fn of(part: &GroupHits) -> Self {
        Self { hits: part.hits.values().fold(0, |sum, hits| hits.wrapping_add(sum)), sums: part.sums }
    }
    /// Of all groups.
    pub(super) fn total(parts: impl IntoIterator<Item = Self>) -> Self {
        let plus = |all: Self, one: Self| Self {
            hits: all.hits.wrapping_add(one.hits),
            sums: ValueSums::merged(all.sums, one.sums),
        };
        parts.into_iter().fold(Self::default(), plus)
    }
    /// What JSON has, if there were hits.
    pub(super) fn fields(self) -> Option<SumFields> {
        let ValueSums { sum, min, max } = self.sums?;
        Some(SumFields { sum, min, max, avg: sum as f64 / self.hits as f64 })
    }
    fn cells(self, columns: Columns) -> impl Iterator<Item = String> {
        let shown = |asked: bool, text: fn(ValueSums, u64) -> String| {
            asked.then(|| self.sums.map_or_else(|| "-".to_owned(), |sums| text(sums, self.hits)))
        };
        let cells = [
            Some(grouped(self.hits)),
            shown(columns.sum, |sums, _| signed(sums.sum)),
            shown(columns.min, |sums, _| signed(sums.min)),
            shown(columns.max, |sums, _| signed(sums.max)),
            shown(columns.avg, |sums, hits| quotient(sums.sum, hits)),
        ];
        cells.into_iter().flatten()
    }
}

/// One line for each group, or one line. `by`: what groups are called, if there are any.
pub(super) fn table(columns: Columns, by: Option<&str>, groups: &[(String, OfHits)]) -> String {
    let Columns { sum, min, max, avg } = columns;
    let asked = [(true, "HITS"), (sum, "SUM"), (min, "MIN"), (max, "MAX"), (avg, "AVG")];
    let mut heads: Vec<_> =
        asked.into_iter().filter(|(asked, _)| *asked).map(|(_, head)| (head, Align::Right)).collect();
    heads.extend(by.map(|by| (by, Align::Left)));
    let mut table = Table::new(&heads);
    for (name, one) in groups {
        table.row(one.cells(columns).chain([name.clone()]));
    }
    if groups.len() > 1 {
        let total = OfHits::total(groups.iter().map(|(_, one)| *one));
        table.row(total.cells(columns).chain(["total".to_owned()]));
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use trapline::aggregation::{GroupHits, ValueSums};

    use super::{OfHits, table};
    use crate::args::hist::Columns;

    fn group(hits: u64, sum: i128, min: i128, max: i128) -> OfHits {
        let sums = Some(ValueSums { sum, min, max });
        OfHits::of(&GroupHits { group: None, key: None, hits: BTreeMap::from([(0, hits)]), sums })
    }

    #[test]
    fn a_table_has_what_was_asked_for_and_a_total() {
        let all = Columns { sum: true, min: true, max: true, avg: true };
        let groups = [("3".to_owned(), group(1200, -70_000, -900, 12)), ("x".to_owned(), group(3, 2, 0, 1))];
        let lines = [
            " HITS      SUM   MIN  MAX     AVG  fd",
            "1,200  -70,000  -900   12  -58.33  3",
            "    3        2     0    1    0.67  x",
            "1,203  -69,998  -900   12  -58.19  total",
        ];
        assert_eq!(table(all, Some("fd"), &groups), lines.map(|line| format!("{line}\n")).concat());
        let most = Columns { sum: false, min: false, max: true, avg: false };
        assert_eq!(table(most, None, &[(String::new(), group(7, 9, 1, 2))]), "HITS  MAX\n   7    2\n");
    }

    #[test]
    fn json_has_all_and_large_sums_are_whole() {
        let fields = |one: OfHits| serde_json::to_string(&one.fields()).expect("is written");
        let large = i128::from(u64::MAX) * 4;
        assert_eq!(
            fields(group(4, large, -5, u64::MAX.into())),
            r#"{"sum":73786976294838206460,"min":-5,"max":18446744073709551615,"avg":1.8446744073709552e+19}"#
        );
        assert_eq!(fields(OfHits::total([])), "null");
    }
}
