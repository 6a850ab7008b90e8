//! Aggregations: how often an expression had which value, in a table for each probe on each CPU's line.
//!
//! A table begins with [`OVERFLOW`], hits for which no row was left, and [`UNSEEN`], hits that had no value
//! (a tail call has no return value yet). From [`CELLS`] on, its [`TableShape`] decides: either cells that are
//! words, found by index; or rows of two words, a key and its hits. A row is at most [`PROBES`] behind the
//! one that the key's hash selects.
//!
//! # A hit is counted (`plan::programs::rows`)
//!
//! One restartable sequence finds the CPU's table and the key's row, and commits by adding one to the row's
//! hits. A row without hits is free, whatever its key. If no row has the key, the thread takes the first free
//! one: it stores the key, and then commits. Interleavings: a thread that is moved, interrupted or killed
//! before the commit has stored a key in a row that is as free as before. No other thread can be between the
//! two stores on that CPU without its sequence starting again. So a key with hits is never changed, and is
//! never in two rows. Threads without an rseq area count on the last line by `lock add`: cells exactly, hits
//! with a key as overflow. Hits = all cells + overflow + unseen, exactly.
//!
//! In a process without restartable sequences all threads write to all lines, and a thread chooses one by
//! whatever is cheap: cells by `lock add`, rows as follows. R1 load the row's hits: if they are [`TAKING`],
//! another thread has the row for now: go on to the next row. R2 if they are 0: compare-and-swap 0 to TAKING;
//! if they are no longer 0, R1 once more; then store the key, then store 1 for the hits. R3 else load the
//! key: if it is ours, `lock add`; if not, the next row. Interleavings: a row's key is stored only under
//! TAKING, and hits other than 0 never become 0, so what R3 compares stays. A thread that looks under TAKING,
//! also a signal handler of the same thread, goes on, and may take a second row for the same key, which the
//! reader adds up. A thread that is killed under TAKING leaves a row that is no longer used; its hit never
//! ran.
//!
//! # Texts
//!
//! Rows of texts have a hash of the text as key ([`text_key`]), and a place behind all rows for its bytes,
//! [`TEXT_BYTES`] of them, with zeros behind its end. A thread that takes a free row stores the bytes before
//! its first hit is committed, by the same steps as the key. So the bytes of a row with hits never change,
//! and belong to its key. A free row may have a key already and not its bytes, from a thread that was
//! restarted between the two; so they are stored whatever the key. Two texts with one hash would be one row;
//! among 65,536 texts two have the same hash once in eight thousand million tables.
//!
//! # Group-by keys
//!
//! If values or texts are grouped, by thread or by a value of the call itself, a row has four words: key,
//! hits, group-by key (*owner* in identifiers), and one that is not used. The group-by key is the thread's
//! number, or any word of 64 bits. A row is found by key and group-by key together. The group-by key is
//! stored with the key, by the same steps, and before the first hit as well. On a CPU both stores come before
//! the commit, so a thread that is moved, interrupted or killed between them leaves a row that is free,
//! whatever its content. For values grouped by a number, the key is the value (or its cell), and the number
//! is the group-by key. For numbers grouped by a text, the text's hash is the key, since the row holds its
//! bytes, and the value (or cell) is in the word of the group-by key. So there are as many rows for one group
//! as it had values. A hit that finds no row among [`PROBES`] is overflow, of its probe alone.
//!
//! # Sums
//!
//! Rows with a sum and extremes have a group-by key alone as key ([`sums`]).
//!
//! The reader treats all of it as hostile input (REC-2): it looks at every row once, and adds up what is
//! there.

mod shape;
pub mod sums;

pub use shape::{BITS, CELLS, MAX_CELLS, PROBES, Rows, TEXT_BYTES, TableShape, bits_in_reach};

use crate::counters::LINE;
use crate::view::View;

pub use sums::Summed;

/// Byte offset in a table: number of hits for which no row was left.
pub const OVERFLOW: u64 = 0;
/// Byte offset in a table: number of hits without a value.
pub const UNSEEN: u64 = 8;
/// Value in place of a row's hits while a thread stores its key.
pub const TAKING: u64 = 1 << 63;
/// Byte offset in a row of its group-by key.
pub const OWNER: u64 = 16;
/// Number of cells of values by magnitude: below 0, 0, and one for each power of two.
pub const LOG2_CELLS: u32 = 66;
/// 2^64 over the golden ratio, odd. The highest bits of a key times this are the number of its first row
/// (Knuth, TAOCP 6.4).
pub const PHI: u64 = 0x9E37_79B9_7F4A_7C15;

/// FNV-1a, 64 bits: initial value and multiplier (Fowler, Noll, Vo: draft-eastlake-fnv).
pub const FNV: (u64, u64) = (0xcbf2_9ce4_8422_2325, 0x0000_0100_0000_01b3);

/// The key of a text, up to a 0 or its end.
#[must_use]
pub fn text_key(text: &[u8]) -> u64 {
    let bytes = text.iter().take_while(|&&byte| byte != 0);
    bytes.fold(FNV.0, |key, &byte| (key ^ u64::from(byte)).wrapping_mul(FNV.1))
}

/// Maximum length of an area in bytes, unless its rows cannot be fewer. Only tables that are counted in take
/// memory.
pub const MAX_LEN: u64 = 256 << 20;

/// The first row that is tried for a key.
#[must_use]
pub const fn first_row(key: u64, bits: u8) -> u64 {
    key.wrapping_mul(PHI) >> (64 - bits_in_reach(bits) as u32)
}

/// The first row that is tried for a key and a group-by key.
#[must_use]
pub const fn first_owned_row(key: u64, owner: u64, bits: u8) -> u64 {
    first_row(key.wrapping_add(owner.wrapping_mul(FNV.1)), bits)
}

/// The cell of a value by its magnitude; the value's type decides `negative`.
#[must_use]
pub const fn log2_cell(value: u64, negative: bool) -> u32 {
    if negative { 0 } else { 65 - value.leading_zeros() }
}

/// What a table holds besides its cells or rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rest {
    /// Hits for which no row was left.
    pub overflow: u64,
    /// Hits without a value.
    pub unseen: u64,
}

/// A row with hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableRow {
    /// A cell's number, or a row's key.
    pub key: u64,
    /// Number of hits.
    pub hits: u64,
    /// The group-by key, if rows have one.
    pub owner: Option<u64>,
    /// What the hits' values gave, if rows keep that.
    pub summed: Option<Summed>,
}

/// The tables in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TallyArea {
    /// Byte offset of the area in the segment; a multiple of 64.
    pub off: u64,
    /// Number of tables on each line: one for each probe.
    pub tables: u32,
    /// Number of lines.
    pub lines: u32,
    /// Layout of each table.
    pub shape: TableShape,
}

impl TallyArea {
    /// An area at `off`, with as many rows as fit into [`MAX_LEN`].
    #[must_use]
    pub const fn new(off: u64, tables: u32, lines: u32, shape: TableShape) -> Self {
        let mut area = Self { off, tables, lines, shape };
        while area.len() > MAX_LEN {
            area.shape = match area.shape.rows() {
                Some(rows) if rows.bits > BITS.0 => Rows { bits: rows.bits - 1, ..rows }.shape(),
                _ => break,
            };
        }
        area
    }
    /// Distance from one line's table to the next one's, in bytes.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        (self.shape.words() * 8).next_multiple_of(LINE)
    }
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.tables as u64 * self.lines as u64 * self.stride()
    }
    /// Whether there are no tables.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Byte offset in the segment of a probe's table on line 0. Line `l` is `l` strides further.
    #[must_use]
    pub const fn table(&self, probe: u32) -> u64 {
        self.off + probe as u64 * self.lines as u64 * self.stride()
    }
    /// Calls `each` with every cell's number, or row's key, that has hits, and with the hits; returns
    /// overflow and unseen.
    pub fn read(&self, view: View<'_>, probe: u32, line: u32, mut each: impl FnMut(u64, u64)) -> Rest {
        self.read_rows(view, probe, line, |row, _| each(row.key, row.hits))
    }
    /// The same, with group-by keys; `each` may read the words of a row's text.
    pub fn read_rows(
        &self,
        view: View<'_>,
        probe: u32,
        line: u32,
        mut each: impl FnMut(TableRow, &dyn Fn(u64) -> u64),
    ) -> Rest {
        if self.is_empty() || probe >= self.tables || line >= self.lines {
            return Rest::default();
        }
        let table = self.table(probe) + u64::from(line) * self.stride();
        // Hits of rows that changed whenever they were looked at.
        let mut restless = 0_u64;
        match self.shape.rows() {
            Some(rows) => {
                for nth in 0..rows.count() {
                    let row = table + CELLS + nth * rows.size();
                    // The key, and all that belongs to it, was stored before its first hit.
                    let mut hits = view.get(row + 8);
                    if hits != 0 && hits & TAKING == 0 {
                        let mut summed = None;
                        if rows.sums {
                            let Some((then, what)) = sums::read(view, row) else {
                                restless = restless.wrapping_add(hits);
                                continue;
                            };
                            (hits, summed) = (then, Some(what));
                        }
                        let text = table + rows.first_text() + nth * TEXT_BYTES as u64;
                        let word = |n: u64| {
                            if rows.texts && n < TEXT_BYTES as u64 / 8 { view.get(text + n * 8) } else { 0 }
                        };
                        let owner = rows.owned.then(|| view.get(row + OWNER));
                        each(TableRow { key: view.get(row), hits, owner, summed }, &word);
                    }
                }
            }
            None => {
                for cell in 0..self.shape.words() - CELLS / 8 {
                    let hits = view.get(table + CELLS + cell * 8);
                    if hits != 0 {
                        each(TableRow { key: cell, hits, owner: None, summed: None }, &|_| 0);
                    }
                }
            }
        }
        let overflow = view.get(table + OVERFLOW).wrapping_add(restless);
        Rest { overflow, unseen: view.get(table + UNSEEN) }
    }
}

#[cfg(all(test, not(feature = "loom_words")))]
mod tests {
    extern crate std;
    use super::{
        CELLS, FNV, LOG2_CELLS, OVERFLOW, OWNER, PROBES, Rest, TAKING, TableRow, TableShape, TallyArea,
        UNSEEN, first_owned_row, first_row, log2_cell, text_key,
    };
    use crate::sync::AtomicU64;
    use crate::view::View;
    use std::vec::Vec;

    #[test]
    fn the_layout_is_a_contract() {
        assert_eq!((OVERFLOW, UNSEEN, CELLS, PROBES, LOG2_CELLS), (0, 8, 16, 16, 66));
        let log = TallyArea { off: 64, tables: 2, lines: 3, shape: TableShape::Cells(LOG2_CELLS) };
        assert_eq!((log.stride(), log.table(1), log.len()), (576, 64 + 3 * 576, 6 * 576));
        let rows = TallyArea { shape: TableShape::Rows(10), ..log };
        assert_eq!(rows.stride(), (16_u64 + 16 * (1024 + 16)).next_multiple_of(64));
        assert_eq!(TallyArea::default().len(), 0);
        assert_eq!(TallyArea::new(64, 2, 3, TableShape::Rows(12)).shape, TableShape::Rows(12));
        let many = TallyArea::new(64, 5000, 65, TableShape::Rows(12));
        assert!(matches!(many.shape, TableShape::Rows(4..12)), "{many:?}");
        assert_eq!(TallyArea::new(64, 1 << 20, 65, TableShape::Rows(12)).shape, TableShape::Rows(4));
        assert_eq!(
            (TableShape::Rows(200).words(), TableShape::Cells(u32::MAX).words()),
            (2 + 2 * (16384 + 16), 4098)
        );
        assert_eq!((first_row(0, 10), first_row(1, 10), first_row(u64::MAX, 4)), (0, 0x9E37 >> 6, 6));
    }

    #[test]
    fn texts_lie_behind_all_rows() {
        assert_eq!(
            (text_key(b""), text_key(b"a"), text_key(b"foobar\0x")),
            (FNV.0, 0xaf63_dc4c_8601_ec8c, 0x8594_4171_f739_67e8)
        );
        let area = TallyArea { off: 64, tables: 1, lines: 2, shape: TableShape::Texts(4) };
        let texts = area.shape.rows().expect("rows").first_text();
        assert_eq!((texts, area.stride()), (16 + 16 * 32, (16 + 16 * 32 + 64 * 32_u64).next_multiple_of(64)));
        let words: Vec<AtomicU64> = (0..1000).map(|_| AtomicU64::new(0)).collect();
        let view = View::new(&words);
        let at = area.table(0) + area.stride();
        for (word, value) in
            [(0, 3), (16 + 16 * 31, 7), (24 + 16 * 31, 9), (texts + 64 * 31, 5), (texts + 64 * 31 + 56, 6)]
        {
            assert!(view.set(at + word, value));
        }
        let mut seen = Vec::new();
        let rest =
            area.read_rows(view, 0, 1, |row, word| seen.push((row.key, row.hits, [0, 6, 7, 8].map(word))));
        assert_eq!((rest.overflow, seen), (3, Vec::from([(7, 9, [5, 0, 6, 0])])));
        assert!(matches!(
            TallyArea::new(64, 5000, 65, TableShape::Texts(12)).shape,
            TableShape::Texts(4..12)
        ));
    }

    #[test]
    fn rows_may_have_owners() {
        let area = TallyArea { off: 64, tables: 1, lines: 2, shape: TableShape::OwnedTexts(4) };
        let texts = area.shape.rows().expect("rows").first_text();
        assert_eq!(
            (OWNER, texts, area.stride()),
            (16, 16 + 32 * 32, (16_u64 + 96 * 32).next_multiple_of(64))
        );
        let words: Vec<AtomicU64> = (0..1000).map(|_| AtomicU64::new(0)).collect();
        let (view, at) = (View::new(&words), area.table(0) + area.stride());
        let row = at + 16 + 32 * 31;
        for (at, value) in [(row, 7), (row + 8, 9), (row + 16, 5 << 32 | 77), (at + texts + 64 * 31 + 8, 6)] {
            assert!(view.set(at, value));
        }
        let mut seen = Vec::new();
        area.read_rows(view, 0, 1, |row, word| seen.push((row, word(1))));
        assert_eq!(seen, [(TableRow { key: 7, hits: 9, owner: Some(5 << 32 | 77), summed: None }, 6)]);
        assert_eq!(first_owned_row(5, 0, 10), first_row(5, 10));
        let apart =
            (0..64).map(|owner| first_owned_row(5, owner, 10)).collect::<std::collections::HashSet<_>>();
        assert!(apart.len() > 48, "{apart:?}");
        assert!(matches!(
            TallyArea::new(64, 5000, 65, TableShape::OwnedTexts(12)).shape,
            TableShape::OwnedTexts(4..12)
        ));
    }

    #[test]
    fn cells_are_powers_of_two() {
        for (value, negative, cell) in
            [(0, false, 1), (1, false, 2), (2, false, 3), (3, false, 3), (u64::MAX, false, 65), (5, true, 0)]
        {
            assert_eq!(log2_cell(value, negative), cell, "{value}");
        }
    }

    #[test]
    fn what_was_counted_is_read() {
        let words: Vec<AtomicU64> = (0..1000).map(|_| AtomicU64::new(0)).collect();
        let view = View::new(&words);
        let area = TallyArea { off: 64, tables: 2, lines: 2, shape: TableShape::Rows(4) };
        let at = area.table(1) + area.stride();
        let taking = [(32, 5), (40, TAKING)];
        let counted = [(0, 3), (8, 4), (16, 77), (24, 0), (16 + 16 * 31, 0), (24 + 16 * 31, 9)];
        for (word, value) in counted.into_iter().chain(taking) {
            assert!(view.set(at + word, value));
        }
        let mut seen = Vec::new();
        let rest = area.read(view, 1, 1, |key, hits| seen.push((key, hits)));
        assert_eq!((rest, seen), (Rest { overflow: 3, unseen: 4 }, Vec::from([(0, 9)])));
        for (probe, line) in [(0, 1), (2, 0), (0, 2), (u32::MAX, u32::MAX)] {
            let rest = area.read(view, probe, line, |key, _| panic!("{key}"));
            assert_eq!(rest, Rest::default());
        }
        let cells = TallyArea { shape: TableShape::Cells(3), ..area };
        assert!(view.set(cells.table(0) + CELLS + 16, 5));
        let mut seen = Vec::new();
        cells.read(view, 0, 0, |cell, hits| seen.push((cell, hits)));
        assert_eq!(seen, [(2, 5)]);
    }
}
