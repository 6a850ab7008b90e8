//! Latency areas: what exit stubs write for each timed function, per line as for counters.
//!
//! Function `f` on line `l` has a block at `LATENCY_OFF + (f·lines + l)·STRIDE`. All times are TSC ticks.
//! Every word is written by its own rseq commit (or `lock add`), so each is exact; two words may differ by
//! calls in progress.
//!
//! Entry stamps are private memory of the target, so that a forked child has its own. They are in blocks of
//! [`STAMP_BLOCK`] bytes, one for each stack page in use: stamp cell `(sp & 0xfff)/8` = {tsc, function
//! index + 1}. The tag table (one word per block: key of the page, 0 = free) comes first. A block is claimed
//! once by `lock cmpxchg`. Then any thread that runs on that stack page writes to it with plain stores.

use crate::hist;

/// Byte offsets in a function's block.
pub mod at {
    /// Calls that ended at a `ret` or `ret n` (those that ended at a tail jump are counted separately). Where
    /// [`BEGUN`] counts, a call whose duration is kept is counted by its bucket alone, not here.
    pub const RETURNS: u64 = 0;
    /// Calls that ended by jumping into another function.
    pub const TAIL_EXITS: u64 = 8;
    /// Exits that found no stamp (calls that ran at attach).
    pub const UNPAIRED: u64 = 16;
    /// Stamps overwritten by a new entry on the same key.
    pub const UNRETURNED: u64 = 24;
    /// Calls that were armed with a return trampoline. What is neither ended nor [`UNRETURNED`] of them is
    /// under way or was left, also after the process has ended: LOSS-2.
    pub const BEGUN: u64 = 32;
    /// Sum of durations.
    pub const TOTAL: u64 = 40;
    /// Smallest duration, stored as its complement so that 0 means none.
    pub const MIN_NOT: u64 = 48;
    /// Largest duration.
    pub const MAX: u64 = 56;
    /// Negative intervals, clamped to 0.
    pub const CLAMPED: u64 = 64;
    /// Histogram: `hist::BUCKETS` words.
    pub const BUCKETS: u64 = 128;
}

/// Length of a function's block on one line, in bytes; whole cache lines.
pub const STRIDE: u64 = (at::BUCKETS + hist::BUCKETS as u64 * 8).next_multiple_of(64);

/// Maximum number of stamp blocks per process; a power of two.
pub const STAMP_BLOCKS: u64 = 8192;
/// Length of a stamp block in bytes: 512 cells of 16.
pub const STAMP_BLOCK: u64 = 512 * 16;
/// Number of blocks that are tried before an entry counts as missed. With eight, one of 30,000 found no block where three
/// of ten are taken.
pub const STAMP_PROBES: u64 = 64;
/// Length of the tag table in bytes.
pub const STAMP_TAGS_LEN: u64 = STAMP_BLOCKS * 8;
/// Length of the whole stamp memory in bytes: tags, then blocks.
pub const STAMPS_LEN: u64 = STAMP_TAGS_LEN + STAMP_BLOCKS * STAMP_BLOCK;

/// Maximum length of all blocks, for larger cells; only blocks that are written take memory.
pub const MAX_BLOCKS_LEN: u64 = 1 << 30;

/// Length of the largest stamp cell in bytes, as a power of two.
pub const MOST_CELL_BITS: u8 = 12;

/// Size of stamp cells. A stamp's cell has 16 bytes. If a call's entry leaves its record in a cell until the
/// call returns (`plan::x86_64::stub::deferred`), the cell is as long as a record. Their place is found by
/// the same rule: a block of 512 cells for each stack page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamps {
    /// Length of a cell in bytes, as a power of two: from 4 to 12.
    cell_bits: u8,
}

impl Default for Stamps {
    fn default() -> Self {
        Self::of(16)
    }
}

impl Stamps {
    /// Cells of that many bytes, rounded up to a power of two within the limits.
    #[must_use]
    pub const fn of(bytes: u32) -> Self {
        let bits = bytes.saturating_sub(1).checked_ilog2();
        let bits = match bits {
            Some(bits) => bits as u8 + 1,
            None => 0,
        };
        Self {
            cell_bits: if bits < 4 {
                4
            } else if bits > MOST_CELL_BITS {
                MOST_CELL_BITS
            } else {
                bits
            },
        }
    }
    /// Length of a cell in bytes, as a power of two.
    #[must_use]
    pub const fn cell_bits(self) -> u8 {
        self.cell_bits
    }
    /// Length of a block in bytes, as a power of two: 512 cells.
    #[must_use]
    pub const fn block_bits(self) -> u8 {
        9 + self.cell_bits
    }
    /// Number of blocks, as a power of two.
    #[must_use]
    pub const fn count_bits(self) -> u8 {
        let (most, fit) = (STAMP_BLOCKS.trailing_zeros() as u8, MAX_BLOCKS_LEN.trailing_zeros() as u8);
        let fit = fit - self.block_bits();
        if fit < most { fit } else { most }
    }
    /// Length of the tag table in bytes; blocks begin behind it.
    #[must_use]
    pub const fn tags_len(self) -> u64 {
        8 << self.count_bits()
    }
    /// Length of the whole stamp memory in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.tags_len() + (1 << (self.count_bits() + self.block_bits()))
    }
    /// Whether stamp memory with cells of any size has this length.
    #[must_use]
    pub const fn is_len(len: u64) -> bool {
        let mut bits = 4;
        while bits <= MOST_CELL_BITS {
            if (Self { cell_bits: bits }).bytes() == len {
                return true;
            }
            bits += 1;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_BLOCKS_LEN, STAMP_BLOCK, STAMP_BLOCKS, STAMP_TAGS_LEN, STAMPS_LEN, Stamps};

    #[test]
    fn slots_are_as_large_as_asked_for() {
        let usual = Stamps::default();
        assert_eq!((usual.bytes(), usual.tags_len()), (STAMPS_LEN, STAMP_TAGS_LEN));
        assert_eq!((1 << usual.block_bits(), 1 << usual.count_bits()), (STAMP_BLOCK, STAMP_BLOCKS));
        for (bytes, slot, blocks) in [
            (0, 4, 8192),
            (17, 5, 8192),
            (64, 6, 8192),
            (256, 8, 8192),
            (512, 9, 4096),
            (2048, 11, 1024),
            (9999, 12, 512),
        ] {
            let stamps = Stamps::of(bytes);
            assert_eq!((stamps.cell_bits(), 1_u64 << stamps.count_bits()), (slot, blocks), "{bytes}");
            assert!(stamps.bytes() <= MAX_BLOCKS_LEN + STAMP_TAGS_LEN && Stamps::is_len(stamps.bytes()));
        }
        assert!(!Stamps::is_len(0) && !Stamps::is_len(4096));
    }
}
