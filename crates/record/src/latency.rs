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

/// Stamp blocks per process at most; a power of two.
pub const STAMP_BLOCKS: u64 = 8192;
/// Bytes of one stamp block: 512 slots of 16.
pub const STAMP_BLOCK: u64 = 512 * 16;
/// Blocks looked at before an entry counts as missed.
pub const STAMP_PROBES: u64 = 8;
/// Bytes of the tag table.
pub const STAMP_TAGS_LEN: u64 = STAMP_BLOCKS * 8;
/// Bytes of the whole stamp memory: tags, then blocks.
pub const STAMPS_LEN: u64 = STAMP_TAGS_LEN + STAMP_BLOCKS * STAMP_BLOCK;

/// Blocks of larger slots take no more than this; only what is written takes memory.
pub const MAX_BLOCKS_LEN: u64 = 1 << 30;

/// How large slots are. Those of stamps have 16 bytes; where a call's entry leaves its record until it returns
/// (`plan::x86_64::stub::stage`), as many as a record has. Their place goes by the same rule: a block of 512 to each stack page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamps {
    /// Bytes of a slot, as a power of two: from 4 to 12.
    slot_bits: u8,
}

impl Default for Stamps {
    fn default() -> Self {
        Self::of(16)
    }
}

impl Stamps {
    /// Slots of that many bytes, rounded up to a power of two within the limits.
    #[must_use]
    pub const fn of(bytes: u32) -> Self {
        let bits = bytes.saturating_sub(1).checked_ilog2();
        let bits = match bits {
            Some(bits) => bits as u8 + 1,
            None => 0,
        };
        Self {
            slot_bits: if bits < 4 {
                4
            } else if bits > 12 {
                12
            } else {
                bits
            },
        }
    }
    /// Bytes of a slot, as a power of two.
    #[must_use]
    pub const fn slot_bits(self) -> u8 {
        self.slot_bits
    }
    /// Bytes of a block, as a power of two: 512 slots.
    #[must_use]
    pub const fn block_bits(self) -> u8 {
        9 + self.slot_bits
    }
    /// Blocks, as a power of two.
    #[must_use]
    pub const fn count_bits(self) -> u8 {
        let (most, fit) = (STAMP_BLOCKS.trailing_zeros() as u8, MAX_BLOCKS_LEN.trailing_zeros() as u8);
        let fit = fit - self.block_bits();
        if fit < most { fit } else { most }
    }
    /// Bytes of the tag table, where blocks begin.
    #[must_use]
    pub const fn tags_len(self) -> u64 {
        8 << self.count_bits()
    }
    /// Bytes of it all.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.tags_len() + (1 << (self.count_bits() + self.block_bits()))
    }
    /// Whether stamp memory of any kind has this length.
    #[must_use]
    pub const fn is_len(len: u64) -> bool {
        let mut bits = 4;
        while bits <= 12 {
            if (Self { slot_bits: bits }).bytes() == len {
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
            assert_eq!((stamps.slot_bits(), 1_u64 << stamps.count_bits()), (slot, blocks), "{bytes}");
            assert!(stamps.bytes() <= MAX_BLOCKS_LEN + STAMP_TAGS_LEN && Stamps::is_len(stamps.bytes()));
        }
        assert!(!Stamps::is_len(0) && !Stamps::is_len(4096));
    }
}
