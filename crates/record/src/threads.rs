//! Counters by thread: a row for each thread that hit something, found by the thread's number.
//!
//! The area begins with one word for each row, its *tag*: thread number + 1, 0 = free. A thread claims the
//! first free row at or after `tid % rows` once, by `lock cmpxchg`, and tries no more than [`PROBES`] rows.
//! Then come the rows, a word for each counter, whole cache lines to a row. The row behind the last is for
//! threads that found none. Words are written by `lock add`, so if two threads have the same number (in two
//! PID namespaces, or one after the other), the count is still exact. Rows are never given back: a later
//! thread of the same number goes on counting in its row.

use crate::counters::LINE;
use crate::view::View;

/// Number of rows that are tried before a hit counts in the row of all others.
pub const PROBES: u32 = 64;
/// Maximum number of rows; a power of two.
pub const MAX_ROWS: u32 = 4096;
/// Minimum number of rows; a power of two.
pub const MIN_ROWS: u32 = 64;
/// Maximum length of an area in bytes, unless [`MIN_ROWS`] rows take more. Only rows in use take memory.
pub const MAX_LEN: u64 = 128 << 20;

/// The rows in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ThreadArea {
    /// Byte offset of the area in the segment; a multiple of 64.
    pub off: u64,
    /// Number of rows with a tag; a power of two, or 0 when nothing is counted by thread.
    pub rows: u32,
    /// Number of counters.
    pub counters: u32,
}

impl ThreadArea {
    /// Number of rows that fit for that many counters.
    #[must_use]
    pub const fn rows_for(counters: u32) -> u32 {
        let mut rows = MAX_ROWS;
        while rows > MIN_ROWS && rows as u64 * stride(counters) > MAX_LEN {
            rows /= 2;
        }
        rows
    }
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        if self.is_empty() { 0 } else { self.first() + (self.rows as u64 + 1) * self.stride() }
    }
    /// Whether nothing is counted by thread.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }
    /// Distance from one row to the next in bytes.
    #[must_use]
    pub const fn stride(&self) -> u64 {
        stride(self.counters)
    }
    /// Length of the tags in bytes: from the area's start to row 0.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.rows as u64 * 8
    }
    /// Byte offset in the segment of a row's word for a counter.
    #[must_use]
    pub const fn word(&self, row: u32, counter: u32) -> u64 {
        self.off + self.first() + row as u64 * self.stride() + counter as u64 * 8
    }
    /// Rows in use, with their threads' numbers as the threads see them; then the row of all others, without
    /// a number.
    pub fn rows(self, view: View<'_>) -> impl Iterator<Item = (u32, Option<u32>)> + '_ {
        let tagged = (0..self.rows).filter_map(move |row| {
            let tag = view.get(self.off + u64::from(row) * 8);
            (tag != 0).then(|| (row, Some(tag.wrapping_sub(1) as u32)))
        });
        tagged.chain((!self.is_empty()).then_some((self.rows, None)))
    }
    /// A row's count.
    #[must_use]
    pub fn read(&self, view: View<'_>, row: u32, counter: u32) -> u64 {
        view.get(self.word(row, counter))
    }
}

const fn stride(counters: u32) -> u64 {
    (counters as u64 * 8).next_multiple_of(LINE)
}
