//! Layout of a probe's table: cells, or rows, which may have texts and group-by keys.
//!
//! In: what is aggregated. Out: number of words, and offsets.
//! Does not: read them.

/// Byte offset in a table of its cells or rows.
pub const CELLS: u64 = 16;
/// Number of rows that are tried for a key.
pub const PROBES: u32 = 16;
/// Maximum number of cells.
pub const MAX_CELLS: u32 = 4096;
/// Minimum and maximum number of bits of a row's number.
pub const BITS: (u8, u8) = (4, 14);
/// Maximum number of bytes of a text in a row.
pub const TEXT_BYTES: usize = crate::ring::TEXT_BYTES;

/// The number of bits, within the limits.
#[must_use]
pub const fn bits_in_reach(bits: u8) -> u8 {
    if bits < BITS.0 {
        BITS.0
    } else if bits > BITS.1 {
        BITS.1
    } else {
        bits
    }
}

/// How a table is laid out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TableShape {
    /// No table.
    #[default]
    Nothing,
    /// So many cells, found by index.
    Cells(u32),
    /// 2 to the power of this many rows, found by key, and [`PROBES`] rows behind them.
    Rows(u8),
    /// The same, and the bytes of a text for each row, behind all rows.
    Texts(u8),
    /// Like `Rows`, each with a key and a group-by key.
    OwnedRows(u8),
    /// Like `Texts`, each with a text and a group-by key.
    OwnedTexts(u8),
    /// Rows that keep a sum and extremes. (`sums` holds.)
    Sums(Rows),
}

/// Layout of the rows of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// There are 2 to the power of this many, and [`PROBES`].
    pub bits: u8,
    /// Each has a text.
    pub texts: bool,
    /// Each has a group-by key.
    pub owned: bool,
    /// Each has a sum and extremes ([`super::sums`]).
    pub sums: bool,
}

impl Rows {
    /// Number of rows.
    #[must_use]
    pub const fn count(self) -> u64 {
        (1 << bits_in_reach(self.bits)) + PROBES as u64
    }
    /// Length of a row in bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        match (self.sums, self.owned) {
            (true, _) => super::sums::ROW,
            (false, true) => 32,
            (false, false) => 16,
        }
    }
    /// Byte offset in a table of the first row's text.
    #[must_use]
    pub const fn first_text(self) -> u64 {
        CELLS + self.size() * self.count()
    }
    const fn words(self) -> u64 {
        let texts = if self.texts { TEXT_BYTES as u64 * self.count() } else { 0 };
        (self.first_text() + texts) / 8
    }
    /// The layout of a table with these rows.
    #[must_use]
    pub const fn shape(self) -> TableShape {
        match (self.texts, self.owned) {
            _ if self.sums => TableShape::Sums(self),
            (false, false) => TableShape::Rows(self.bits),
            (true, false) => TableShape::Texts(self.bits),
            (false, true) => TableShape::OwnedRows(self.bits),
            (true, true) => TableShape::OwnedTexts(self.bits),
        }
    }
}

impl TableShape {
    /// The layout of its rows, if it has rows.
    #[must_use]
    pub const fn rows(self) -> Option<Rows> {
        let (bits, texts, owned) = match self {
            Self::Nothing | Self::Cells(_) => return None,
            Self::Rows(bits) => (bits, false, false),
            Self::Texts(bits) => (bits, true, false),
            Self::OwnedRows(bits) => (bits, false, true),
            Self::OwnedTexts(bits) => (bits, true, true),
            Self::Sums(rows) => return Some(Rows { sums: true, ..rows }),
        };
        Some(Rows { bits, texts, owned, sums: false })
    }
    /// Number of words in a table.
    #[must_use]
    pub const fn words(self) -> u64 {
        match (self, self.rows()) {
            (_, Some(rows)) => rows.words(),
            (Self::Cells(cells), None) => CELLS / 8 + min(cells, MAX_CELLS) as u64,
            (_, None) => 0,
        }
    }
    /// A layout with room for either.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        if let (Some(one), Some(two)) = (self.rows(), other.rows()) {
            let bits = if one.bits > two.bits { one.bits } else { two.bits };
            let (texts, owned) = (one.texts || two.texts, one.owned || two.owned);
            return Rows { bits, texts, owned, sums: one.sums || two.sums }.shape();
        }
        if self.words() >= other.words() { self } else { other }
    }
}

const fn min(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests {
    use super::{Rows, TableShape};

    #[test]
    fn a_table_for_two_has_what_either_has() {
        let [cells, rows, texts] = [TableShape::Cells(4096), TableShape::Rows(12), TableShape::Texts(12)];
        let sums = |texts, owned| TableShape::Sums(Rows { bits: 12, texts, owned, sums: true });
        let [owned, both] = [TableShape::OwnedRows(12), TableShape::OwnedTexts(12)];
        for (one, two, all) in [
            (TableShape::Nothing, cells, cells),
            (cells, rows, rows),
            (rows, owned, owned),
            (rows, texts, texts),
            (texts, owned, both),
            (both, cells, both),
            (sums(false, false), rows, sums(false, false)),
            (sums(false, false), both, sums(true, true)),
            (sums(true, false), cells, sums(true, false)),
        ] {
            assert_eq!((one.or(two), two.or(one)), (all, all));
        }
    }
}
