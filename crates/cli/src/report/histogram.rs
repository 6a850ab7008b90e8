//! Histograms as bpftrace draws them: `[1K, 2K)   123 |@@@@    |`, 52 columns for the fullest row. Columns are
//! wider than there where a label or a number needs it, so that all bars begin in one column.

use trapline::Histogram;
use trapline::histogram::HistogramRow;

use super::number::binary;
use crate::args::command::HistogramStyle;

/// Length of the fullest bar, in columns.
const BAR: usize = 52;
/// Columns for a label, and for a number.
const LABEL: usize = 20;
const NUMBER: usize = 10;

/// Draws a histogram in the requested shape.
pub(crate) fn draw(histogram: &Histogram, shape: &HistogramStyle) -> String {
    let unit = shape.unit.nanos();
    match shape.linear {
        None => bars(histogram.log2(unit).into_iter().map(|row| (range(row, binary), row.2))),
        Some(linear) => {
            let (below, inside, above) = histogram.linear(unit, linear.min, linear.max, linear.step);
            let first = (below > 0).then(|| (format!("(..., {})", linear.min), below));
            let last = (above > 0).then(|| (format!("[{}, ...)", linear.max), above));
            let inside = inside.into_iter().map(|row| (range(row, |edge| edge.to_string()), row.2));
            bars(first.into_iter().chain(inside).chain(last))
        }
    }
}

fn range((low, high, _): HistogramRow, edge: impl Fn(u64) -> String) -> String {
    format!("[{}, {})", edge(low), edge(high))
}

/// A line for each row, with a bar; the fullest row has a bar of the full length.
pub(crate) fn bars(rows: impl Iterator<Item = (String, u64)>) -> String {
    let rows: Vec<(String, u64)> = rows.collect();
    let most = rows.iter().map(|row| row.1).max().unwrap_or(0).max(1);
    let wide = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0).max(LABEL);
    let digits = most.to_string().len().max(NUMBER);
    let line = |(label, calls): &(String, u64)| {
        let filled = (*calls as u128 * BAR as u128 / u128::from(most)) as usize;
        format!("{label:<wide$} {calls:>digits$} |{:<BAR$}|\n", "@".repeat(filled))
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::{bars, draw};
    use crate::args::command::{HistogramStyle, Linear, TimeUnit};
    use crate::report::samples::timed;

    #[test]
    fn steps_have_a_row_for_all_below_and_one_for_all_above() {
        // Calls of 100, 101 and 310 ns.
        let labels = |min, max, step| -> Vec<String> {
            let shape =
                HistogramStyle { linear: Some(Linear { min, max, step }), ..HistogramStyle::default() };
            let drawn = draw(&timed().times[0].histogram, &shape);
            drawn
                .lines()
                .map(|line| line.split('|').next().unwrap_or_default().trim_end().to_owned())
                .collect()
        };
        let row = |label: &str, calls: u32| format!("{label:<20} {calls:>10}");
        assert_eq!(labels(0, 200, 100), [row("[100, 200)", 2), row("[200, ...)", 1)]);
        assert_eq!(labels(200, 400, 200), [row("(..., 200)", 2), row("[200, 400)", 1)]);
        let micros = HistogramStyle { unit: TimeUnit::Micros, ..HistogramStyle::default() };
        assert!(draw(&timed().times[0].histogram, &micros).starts_with("[0, 2) "), "all in the first row");
    }

    #[test]
    fn bars_are_as_bpftrace_draws_them() {
        let drawn = bars([("[512, 1K)".to_owned(), 13), ("[1K, 2K)".to_owned(), 52)].into_iter());
        let expected = format!(
            "[512, 1K)                    13 |{}{}|\n[1K, 2K)                     52 |{}|\n",
            "@".repeat(13),
            " ".repeat(39),
            "@".repeat(52)
        );
        assert_eq!(drawn, expected);
        assert_eq!(bars(std::iter::empty()), "");
    }

    #[test]
    fn bars_are_in_line_behind_long_texts_and_numbers() {
        let rows = [("\"/usr/share/zoneinfo/tzdata\"", 9), ("\"/étc\"", 12_345_678_901), ("[1, 2)", 0)];
        let drawn = bars(rows.map(|(label, calls)| (label.to_owned(), calls)).into_iter());
        let starts: Vec<Option<usize>> =
            drawn.lines().map(|line| line.chars().position(|char| char == '|')).collect();
        assert_eq!(starts, [Some(41); 3], "\n{drawn}");
        let ends: Vec<usize> = drawn.lines().map(|line| line.chars().count()).collect();
        assert_eq!(ends, [41 + 54; 3], "\n{drawn}");
    }
}
