//! A hit adds one to its table (`record::tally`): in a word, a cell, or the row of its key.
//!
//! In: what is aggregated, the table's shape, whether other threads change the table at the same time. Out: the program.
//! Its inputs are those of `input`, as far as it reads them.
//!
//! ```text
//!   word     [table + word] += 1                     overflow, unseen
//!   cell     [table + CELLS + 8 key] += 1
//!   row      `rows`; with a sum and extremes `sums`
//! ```
//!
//! | step | this CPU's table | a table that others change |
//! |---|---|---|
//! | C1 | the commit of a restartable sequence | an atomic addition |
//!
//! C1 alone changes memory. A signal handler, a move to another CPU or the thread's end comes before it, and then nothing
//! has changed (the sequence begins again), or behind it, and then the hit is counted. A reader loads whole words.
//! A forked child shares the table; it counts there as another thread does.

use trapline_code::{Builder, Memory, Place, Program, Unsound, Value};
use trapline_record::tally::{self, CELLS, OVERFLOW, TableShape, UNSEEN};

use super::input::{KEY, TABLE};
use super::rows::{self, Rows};
use super::sums::{self, Sums};
use crate::filter::{Sort, Tally};

/// Where one is added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Adding {
    /// In the word at this offset in the table.
    Word(u64),
    /// In the cell of the key.
    Cell,
    /// In the row of the key.
    Row(Rows),
    /// In the row of the key, with its value.
    Sums(Sums),
}

impl Adding {
    pub(crate) const UNSEEN: Self = Self::Word(UNSEEN);
    pub(crate) const OVERFLOW: Self = Self::Word(OVERFLOW);

    /// Where a hit is added; `seen`: whether it has a value. `text` and `reloads` are those of [`Rows`].
    pub(crate) fn of(shape: TableShape, what: &Tally, seen: bool, (text, reloads): (i32, bool)) -> Self {
        match shape.rows() {
            _ if !seen => Self::UNSEEN,
            Some(rows) => {
                let has_text = rows.texts && what.texts() != 0;
                let of = Rows { rows, text: has_text.then_some(text), reloads };
                if what.sort != Sort::Sums {
                    return Self::Row(of);
                }
                let rows = tally::Rows { owned: false, ..rows };
                Self::Sums(Sums { rows: Rows { rows, ..of }, unsigned: what.value.is_unsigned() })
            }
            None => Self::Cell,
        }
    }
    /// The same for a thread without an area, which looks for no row.
    pub(crate) const fn without_area(self) -> Self {
        match self {
            Self::Row(_) | Self::Sums(_) => Self::OVERFLOW,
            other => other,
        }
    }
    /// Whether there is a word besides the key: a group-by key, or the value.
    pub(crate) const fn is_owned(self) -> bool {
        matches!(self, Self::Row(Rows { rows: tally::Rows { owned: true, .. }, .. }) | Self::Sums(_))
    }
    /// The program; `memory`: what the table is, [`Memory::Mine`] or [`Memory::Shared`].
    ///
    /// # Errors
    /// None, for tables that there are.
    pub(crate) fn program(self, memory: Memory) -> Result<Program, Unsound> {
        let mut builder = Builder::new();
        match (self, memory) {
            (Self::Row(rows), Memory::Shared) => return rows::add_anywhere(builder, rows),
            (Self::Row(rows), _) => return rows::add(builder, rows),
            (Self::Sums(sums), Memory::Shared) => return sums::add_anywhere(builder, sums),
            (Self::Sums(sums), _) => return sums::add(builder, sums),
            _ => {}
        }
        let table = builder.pointer(TABLE, memory);
        let place = match self {
            Self::Word(word) => Place::at(table, word as i32),
            _ => {
                let cell = builder.input(KEY);
                Place { base: table, index: Some((builder.in_var(cell), 3)), offset: CELLS as i32 }
            }
        };
        if memory == Memory::Mine {
            return builder.commit(place, Value::Number(1));
        }
        builder.add(place, Value::Number(1));
        builder.finish(None)
    }
}
