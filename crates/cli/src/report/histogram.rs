//! Histograms as bpftrace draws them: `[1K, 2K)   123 |@@@@    |`, 52 columns for the fullest row.

use trapline::{Row, Spread};

use super::number::binary;
use crate::args::ready::Shape;

/// Columns of the fullest bar.
const BAR: usize = 52;

/// Draws a spread in the shape asked for.
pub(crate) fn draw(spread: &Spread, shape: &Shape) -> String {
    let unit = shape.unit.nanos();
    match shape.linear {
        None => rows(spread.log2(unit).into_iter().map(|row| (range(row, binary), row.2))),
        Some(linear) => {
            let (below, inside, above) = spread.linear(unit, linear.min, linear.max, linear.step);
            let first = (below > 0).then(|| (format!("(..., {})", linear.min), below));
            let last = (above > 0).then(|| (format!("[{}, ...)", linear.max), above));
            let inside = inside.into_iter().map(|row| (range(row, |edge| edge.to_string()), row.2));
            rows(first.into_iter().chain(inside).chain(last))
        }
    }
}

fn range((low, high, _): Row, edge: impl Fn(u64) -> String) -> String {
    format!("[{}, {})", edge(low), edge(high))
}

fn rows(rows: impl Iterator<Item = (String, u64)>) -> String {
    let rows: Vec<(String, u64)> = rows.collect();
    let most = rows.iter().map(|row| row.1).max().unwrap_or(0).max(1);
    let line = |(label, calls): &(String, u64)| {
        let filled = (*calls as u128 * BAR as u128 / u128::from(most)) as usize;
        format!("{label:<20} {calls:>10} |{:<BAR$}|\n", "@".repeat(filled))
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn bars_are_as_bpftrace_draws_them() {
        let drawn = rows([("[512, 1K)".to_owned(), 13), ("[1K, 2K)".to_owned(), 52)].into_iter());
        let wanted = format!(
            "[512, 1K)                    13 |{}{}|\n[1K, 2K)                     52 |{}|\n",
            "@".repeat(13),
            " ".repeat(39),
            "@".repeat(52)
        );
        assert_eq!(drawn, wanted);
        assert_eq!(rows(std::iter::empty()), "");
    }
}
