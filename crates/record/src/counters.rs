//! Per-CPU counters: eight probes share a cache line, and every CPU has its own line (COST-2).
//!
//! Counter `i` on line `l` is at `COUNTER_OFF + (i/8)·lines·64 + l·64 + (i%8)·8`. In a process with rseq
//! areas for its threads, lines `0..cpus` belong to one CPU each and are written by plain stores that rseq
//! commits. The line after them is for threads without an area, and is written by `lock add`. In a process
//! without rseq all lines are written by `lock add` and indexed by whatever is cheap (CPU number or a hash of
//! the stack): always exact, only contended.

use crate::view::View;

/// Length of a cache line in bytes.
pub const LINE: u64 = 64;
/// Number of counters on a line.
pub const PER_LINE: u64 = LINE / 8;

/// Words of a filtered probe, next to each other on a line.
pub mod filtered {
    /// Number of words.
    pub const WORDS: u32 = 4;
    /// Number of hits that the filter rejected.
    pub const REJECTED: u32 = 0;
    /// Number of hits to skip before the next sample.
    pub const SAMPLE: u32 = 1;
    /// Number of calls with a late condition, which is decided at their return.
    pub const BEGUN: u32 = 2;
    /// Number of these calls that the filter rejected.
    pub const REJECTED_LATE: u32 = 3;
}

/// The counters in a segment's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterArea {
    /// Byte offset of the area in the segment; a multiple of 64.
    pub off: u64,
    /// Number of counters.
    pub count: u32,
    /// Number of lines per group of counters.
    pub lines: u32,
}

impl CounterArea {
    /// Length of the area in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        (self.count as u64).div_ceil(PER_LINE) * self.lines as u64 * LINE
    }
    /// Whether it contains no counter.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
    /// Byte offset in the segment of counter `index`'s word on line 0. Line `l` is `l · 64` further.
    #[must_use]
    pub const fn word(&self, index: u32) -> u64 {
        let index = index as u64;
        self.off + index / PER_LINE * self.lines as u64 * LINE + index % PER_LINE * 8
    }
    /// A counter's value: sum over its lines, wrapping.
    #[must_use]
    pub fn read(&self, view: View<'_>, index: u32) -> u64 {
        (0..u64::from(self.lines)).fold(0, |sum, l| sum.wrapping_add(view.get(self.word(index) + l * LINE)))
    }
    /// A counter's value on one line.
    #[must_use]
    pub fn read_line(&self, view: View<'_>, index: u32, line: u32) -> u64 {
        view.get(self.word(index) + u64::from(line) * LINE)
    }
}
