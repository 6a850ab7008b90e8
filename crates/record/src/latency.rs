//! Latency areas: what exit stubs write for each timed function, per line as for counters.
//!
//! Function `f` on line `l` has a block at `LATENCY_OFF + (f·lines + l)·STRIDE`. All times are TSC ticks. Every word
//! is written by its own rseq commit (or `lock add`), so each is exact; two words may disagree by calls in progress.
//!
//! Stamps are private memory of the target, so that a forked child has its own. They are blocks of
//! [`STAMP_BLOCK`] bytes, one for each stack page in use: slot `(sp & 0xfff)/8` = {tsc, function index + 1}. The tag
//! table (one word per block: key of the page, 0 = free) comes first. A block is claimed once by `lock cmpxchg` and then
//! written with plain stores by whoever runs on that stack page.

use crate::hist;

/// Byte offsets in a function's block.
pub mod at {
    /// Calls that ended at a `ret` or `ret n` (those that ended at a tail jump are counted apart).
    pub const RETURNS: u64 = 0;
    /// Calls that ended by jumping into another function.
    pub const TAIL_EXITS: u64 = 8;
    /// Exits that found no stamp (calls that ran at attach).
    pub const UNPAIRED: u64 = 16;
    /// Stamps overwritten by a new entry on the same key.
    pub const UNRETURNED: u64 = 24;
    /// Negative intervals, clamped to 0.
    pub const CLAMPED: u64 = 32;
    /// Sum of durations.
    pub const TOTAL: u64 = 40;
    /// Smallest duration, stored as its complement so that 0 means none.
    pub const MIN_NOT: u64 = 48;
    /// Largest duration.
    pub const MAX: u64 = 56;
    /// `hist::BUCKETS` words.
    pub const BUCKETS: u64 = 64;
}

/// Bytes of a function's block on one line; whole cache lines.
pub const STRIDE: u64 = (at::BUCKETS + hist::BUCKETS as u64 * 8).next_multiple_of(64);

/// Stamp blocks per process; a power of two.
pub const STAMP_BLOCKS: u64 = 8192;
/// Bytes of one stamp block: 512 slots of 16.
pub const STAMP_BLOCK: u64 = 512 * 16;
/// Blocks looked at before an entry counts as missed.
pub const STAMP_PROBES: u64 = 8;
/// Bytes of the tag table.
pub const STAMP_TAGS_LEN: u64 = STAMP_BLOCKS * 8;
/// Bytes of the whole stamp memory: tags, then blocks.
pub const STAMPS_LEN: u64 = STAMP_TAGS_LEN + STAMP_BLOCKS * STAMP_BLOCK;
