//! Aligned columns. In: rows of text. Out: lines, with numbers to the right, words to the left, and no
//! trailing blanks.

use super::visible;

/// The side of a column to which its text is aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Align {
    /// Numbers.
    Right,
    /// Words.
    Left,
}

/// A table being filled.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter().map(|&(head, align)| (head.to_owned(), align)).collect();
        Self { columns, rows: Vec::new() }
    }
    /// Adds a row; cells beyond the columns are dropped.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(
            cells
                .into_iter()
                .take(self.columns.len())
                .map(|cell| visible::name(&cell).into_owned())
                .collect(),
        );
    }
    /// Head and rows as lines, two blanks between columns.
    pub(crate) fn text(&self) -> String {
        self.text_within(None)
    }
    /// The same for a terminal with so many columns. If rows are wider, the widest words are padded less, so only their
    /// own rows stand out. Nothing is cut.
    pub(crate) fn text_within(&self, columns: Option<usize>) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain([&self.columns[column].0]).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let whole = widths.iter().map(|width| width + 2).sum::<usize>().saturating_sub(2);
        let excess = columns.map_or(0, |columns| whole.saturating_sub(columns));
        let padded = (0..widths.len().saturating_sub(1)).filter(|&at| self.columns[at].1 == Align::Left);
        if let Some(widest) = padded.max_by_key(|&at| widths[at]) {
            widths[widest] = widths[widest].saturating_sub(excess).max(self.columns[widest].0.len());
        }
        let head: Vec<String> = self.columns.iter().map(|column| column.0.clone()).collect();
        std::iter::once(&head).chain(&self.rows).map(|row| self.line(row, &widths)).collect()
    }
    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for ((cell, &width), (_, align)) in row.iter().zip(widths).zip(&self.columns) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            match align {
                Align::Right => line.push_str(&format!("{cell:>width$}")),
                Align::Left => line.push_str(&format!("{cell:<width$}")),
            }
        }
        line.truncate(line.trim_end().len());
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::{Align, Table};

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("HITS", Align::Right), ("FUNCTION", Align::Left), ("X", Align::Left)]);
        table.row(["1,000".to_owned(), "main".to_owned(), "jump".to_owned()]);
        table.row(["7".to_owned(), "a_longer_name".to_owned(), String::new()]);
        let lines = " HITS  FUNCTION       X\n1,000  main           jump\n    7  a_longer_name\n";
        assert_eq!(table.text(), lines);
    }

    #[test]
    fn one_long_name_does_not_make_all_rows_long() {
        let mut table = Table::new(&[("N", Align::Right), ("FUNCTION", Align::Left), ("FILE", Align::Left)]);
        table.row(["1".to_owned(), "a_very_long_name".to_owned(), "x".to_owned()]);
        table.row(["2".to_owned(), "short".to_owned(), "x".to_owned()]);
        let within = |columns| table.text_within(Some(columns));
        assert_eq!(within(100), table.text());
        assert_eq!(within(20), "N  FUNCTION     FILE\n1  a_very_long_name  x\n2  short        x\n");
        assert_eq!(within(5), "N  FUNCTION  FILE\n1  a_very_long_name  x\n2  short     x\n");
    }
}
