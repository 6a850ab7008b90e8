//! What all probes of a process share: the threads' lines, the words where they count, the calls in flight.
//!
//! In: memory, for good. Out: places. Invariants: PRB-3 a thread counts in a row of its own; COST-2 a hit stores to no line that another
//! thread stores to. Does not: map memory (whoever makes an engine does; zeroed, shared with nobody, never unmapped).
//!
//! A row has a group of words for each probe: hits whose consumers were called, hits that were missed, returns that were. A thread adds with one
//! instruction, which neither a signal nor migration splits. The last row is for threads that found no line: their hits are all
//! missed, and are added with a bus lock.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::calls::{Call, Calls};
use crate::epoch::{Line, Lines};
use crate::x86_64::thread::add_own;

/// How often a probe was hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Its consumers were called (those whose filters agreed).
    pub hits: u64,
    /// Nobody was called, as a hit of the same thread was going on.
    pub nested: u64,
    /// Nobody was called, as there was no line for the thread.
    pub unplaced: u64,
    /// Returns that a return handler waited for and was not told of.
    pub unreturned: u64,
}

impl Tally {
    /// Hits for which nobody was called.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.nested + self.unplaced
    }
}

/// Words of a row for each probe: hits, missed, returns missed, and one to fill.
const GROUP: usize = 4;
const HITS: usize = 0;
const MISSED: usize = 1;
const UNRETURNED: usize = 2;
/// Rows begin on lines that no prefetcher pairs.
const ROW_ALIGN: usize = 16;

/// Counting words.
#[derive(Clone, Copy)]
pub struct Counts {
    words: &'static [AtomicU64],
    stride: usize,
    rows: usize,
}

impl Counts {
    /// Words needed for so many lines and probes. Only rows in use are touched.
    #[must_use]
    pub const fn words(lines: usize, probes: usize) -> usize {
        (lines + 1) * Self::stride(probes)
    }
    const fn stride(probes: usize) -> usize {
        (probes * GROUP).next_multiple_of(ROW_ALIGN)
    }
    fn word(&self, row: usize, probe: u32, which: usize) -> Option<&'static AtomicU64> {
        let at = probe as usize * GROUP + which;
        if at < self.stride { self.words.get(row * self.stride + at) } else { None }
    }
    /// A hit whose consumers are called.
    #[inline]
    pub(crate) fn hit(&self, row: usize, probe: u32) {
        self.word(row, probe, HITS).into_iter().for_each(add_own);
    }
    /// A hit during a hit.
    #[cold]
    pub(crate) fn nested(&self, row: usize, probe: u32) {
        self.word(row, probe, MISSED).into_iter().for_each(add_own);
    }
    /// A call whose return somebody waits for, and will not be told of.
    #[cold]
    pub(crate) fn unreturned(&self, row: usize, probe: u32) {
        self.word(row, probe, UNRETURNED).into_iter().for_each(add_own);
    }
    /// A hit of a thread without a row.
    #[cold]
    pub(crate) fn unplaced(&self, probe: u32) {
        if let Some(missed) = self.word(self.rows, probe, MISSED) {
            missed.fetch_add(1, Relaxed);
        }
    }
    /// Sums over all rows.
    #[must_use]
    pub fn of(&self, probe: u32) -> Tally {
        let read = |row, which| self.word(row, probe, which).map_or(0, |word| word.load(Relaxed));
        let sum = |which| (0..self.rows).map(|row| read(row, which)).sum();
        Tally {
            hits: sum(HITS),
            nested: sum(MISSED),
            unplaced: read(self.rows, MISSED),
            unreturned: sum(UNRETURNED),
        }
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts")
            .field("rows", &self.rows)
            .field("stride", &self.stride)
            .finish_non_exhaustive()
    }
}

/// What all probes of a process share.
#[derive(Debug)]
pub struct Engine {
    lines: Lines,
    counts: Counts,
    calls: Calls,
}

/// Zeroed memory, or that of an engine before a fork.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// One for each thread that hits; a power of two. To be wiped on fork (`MADV_WIPEONFORK`): the child's threads have other numbers.
    pub lines: &'static [Line],
    /// As many as [`Counts::words`] says, or more.
    pub words: &'static [AtomicU64],
    /// One for each probed call that can be in flight with a return handler; a power of two.
    pub calls: &'static [Call],
}

impl Engine {
    /// Over this memory. `None` if a length does not fit the others, for so many probes.
    #[must_use]
    pub const fn new(memory: Memory, probes: usize) -> Option<Self> {
        let lines = Lines::new(memory.lines);
        let (rows, stride) = (lines.len(), Counts::stride(probes));
        if rows == 0 || memory.words.len() < Counts::words(rows, probes) || memory.calls.is_empty() {
            return None;
        }
        Some(Self {
            lines,
            counts: Counts { words: memory.words, stride, rows },
            calls: Calls::new(memory.calls),
        })
    }
    /// The threads' lines.
    #[must_use]
    pub const fn lines(&self) -> &Lines {
        &self.lines
    }
    /// The counting words.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }
    /// Calls whose return somebody waits for.
    #[must_use]
    pub const fn calls(&self) -> &Calls {
        &self.calls
    }
}
