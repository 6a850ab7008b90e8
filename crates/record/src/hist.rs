//! Log-linear histogram buckets: 16 per octave, so that a percentile is off by at most 1/16.
//!
//! Values below 16 have a bucket each. Above, a value with its highest bit at `e` is in octave `e`, and its
//! sub-bucket is the four bits after the highest. The generated code computes the same index with `bsr` and
//! shifts.

/// log2 of the sub-buckets per octave.
pub const SUB_BITS: u32 = 4;
/// Sub-buckets per octave.
pub const SUB: u64 = 1 << SUB_BITS;
/// Highest octave kept; larger values are in its last bucket (2^47 ticks are over half a day).
pub const MAX_EXP: u32 = 47;
/// Number of buckets.
pub const BUCKETS: usize = ((MAX_EXP - SUB_BITS + 2) as usize) * SUB as usize;

/// The bucket of a value.
#[must_use]
pub const fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let exp = 63 - value.leading_zeros();
    if exp > MAX_EXP {
        return BUCKETS - 1;
    }
    let sub = (value >> (exp - SUB_BITS)) & (SUB - 1);
    (((exp - SUB_BITS + 1) as u64) * SUB + sub) as usize
}

/// The half-open range of values in a bucket.
#[must_use]
pub const fn bounds(bucket: usize) -> (u64, u64) {
    let index = bucket as u64;
    if index < SUB {
        return (index, index + 1);
    }
    let exp = (index / SUB - 1) as u32 + SUB_BITS;
    let step = 1u64 << (exp - SUB_BITS);
    let low = (1u64 << exp) + (index % SUB) * step;
    (low, low + step)
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, bounds, bucket};

    #[test]
    fn buckets_tile_the_values() {
        let mut next = 0;
        for index in 0..BUCKETS {
            let (low, high) = bounds(index);
            assert_eq!(low, next, "bucket {index}");
            assert_eq!(bucket(low), index);
            assert_eq!(bucket(high - 1), index);
            next = high;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
