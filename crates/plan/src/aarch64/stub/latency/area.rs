//! What is timed, and where the results are kept.
//!
//! In: addresses and sizes from the layout. Out: plain values, of which each part of a timed stub takes its own.
//! Does not: emit code.

use trapline_record::latency as words;
use trapline_record::trampolines::Trampolines;

use crate::machine::Buckets;

/// What is timed, and where the results are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Address of function 0's block on line 0.
    pub area: u64,
    /// Number of functions in the area.
    pub functions: u32,
    /// Address of the stamp memory: tags, then blocks.
    pub stamps: u64,
    /// Size of its stamp cells.
    pub shape: words::Stamps,
    /// Address of the control block's MISSED word.
    pub missed: u64,
    /// Calls shorter than this many ticks are counted as returns, but enter no bucket, total, minimum or
    /// maximum.
    pub min_ticks: u64,
    /// How durations are sorted into histogram buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Where calls get return trampolines, if some do.
    pub trampolines: Option<Trampolines>,
}

impl Latency {
    /// The same memory, with a cell for each call of any depth.
    #[must_use]
    pub const fn for_deferred(self) -> Self {
        Self { outermost: false, ..self }
    }
}
