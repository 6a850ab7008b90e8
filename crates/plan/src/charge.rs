//! Which process pays for the memory that stubs write, and how much of it there is.
//!
//! In: what the target's and the tracer's control groups have left, what a segment would hold. Out: a segment
//! with rings that fit, of which the tracer pays the certain growth, or a refusal. Invariant SAFE-7: what
//! Trapline allocates never takes the target's group to its limit. Does not: read a group, touch a page.
//!
//! # Why the tracer pays
//!
//! A page of shared memory is charged to the group of the process that touches it first. Stubs run in the
//! target, so rings would be charged to it, and at its limit the kernel ends it. So the tracer allocates
//! those pages itself (`SharedMap::pay`) if the target has a limit, or may have one that is not visible. It
//! does so after they are mapped and before the first site leads to a stub:
//!
//! - *A stub runs before the pages are there*: this cannot happen, since no site is written. Afterwards the
//!   stub's first store is a minor fault, which charges nothing.
//! - *The tracer dies meanwhile*: the mapping holds the file, and no site was written.
//! - *The tracer's group is removed, or the tracer moves to another one*: its charges stay with the group, or
//!   go to the group above. They never go to other groups that map the page.
//! - *The tracer's own group has a limit*, perhaps the same as the target's: the tracer takes no more than a
//!   share of what that group has left, so that neither is near its limit.
//!
//! Some memory is charged to the target all the same: page tables for what is mapped; private pages for entry
//! stamps and return trampolines, one for each stack page in use. The same holds for areas that are too large
//! to be allocated at once (tables of many functions for many CPUs), of which few pages are touched.
//! Therefore a target that has less than [`LEAST_LEFT`] is refused. A target in which these grow beyond its
//! share is detached from (`Attached::overgrown`).

use crate::layout::{DataCounts, DataLayout};

/// The share that may be taken: one byte in this many that are left.
pub const SHARE: u64 = 8;
/// Upper bound of the bytes that are allocated at once, on large machines too.
pub const MOST: u64 = 256 << 20;
/// Lower bound of the bytes that a group must have left for its process, for what Trapline maps there.
pub const LEAST_LEFT: u64 = 512 << 10;
/// Bytes of the smallest useful ring.
const LEAST_RING: u32 = 64 << 10;

/// What control groups have left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryLimits {
    /// The target may be ended by the kernel at a limit.
    pub limited: bool,
    /// Bytes that the target may still allocate, if known.
    pub target: Option<u64>,
    /// Bytes that the tracer may still allocate.
    pub ours: u64,
}

/// Which group has too little left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TooLittle {
    /// The target's group has fewer bytes left than are needed.
    Target {
        /// Bytes left.
        left: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The tracer's group has too little left for the smallest rings.
    Ours {
        /// Bytes left.
        left: u64,
        /// Bytes needed.
        needed: u64,
    },
}

/// A segment, and the bytes of it that the tracer allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charged {
    /// Layout of the segment.
    pub layout: DataLayout,
    /// Ranges (first byte, first byte behind) that the tracer allocates: in the near part, in the far part
    /// without rings, and of the rings.
    pub paid: [(u64, u64); 3],
    /// Number of bytes that may be charged to the target in addition.
    pub may_grow: Option<u64>,
}

/// Lays out a segment so that it fits.
///
/// # Errors
/// If there is no room.
pub fn charge(counts: &DataCounts, left: &MemoryLimits) -> Result<Charged, TooLittle> {
    let layout = DataLayout::new(counts);
    if !left.limited {
        return Ok(Charged { layout, paid: [(0, 0); 3], may_grow: None });
    }
    let budget = (left.ours / SHARE).min(MOST);
    let fixed = layout.rings.off.min(layout.len);
    let mut over = budget;
    let mut take = |from: u64, to: u64| {
        // At most half of it for ranges that may stay empty.
        let fits = to - from <= over && (counts.slot == 0 || to - from <= budget / 2);
        over -= if fits { to - from } else { 0 };
        if fits { (from, to) } else { (from, from) }
    };
    let near = take(0, layout.near.min(fixed));
    let far = take(layout.near.min(fixed), fixed);
    let layout = smaller(counts, over).ok_or_else(|| {
        let least = DataLayout::new(&DataCounts { ring: LEAST_RING.min(counts.ring), ..*counts });
        TooLittle::Ours { left: left.ours, needed: (least.len - fixed) * SHARE }
    })?;
    let rings = if layout.rings.is_empty() { (layout.len, layout.len) } else { (fixed, layout.len) };
    // A page table for each 2 MiB, and as much again for what leads to them.
    let needed = LEAST_LEFT + layout.len / 512 / 16;
    match left.target {
        Some(left) if left < needed => Err(TooLittle::Target { left, needed }),
        target => Ok(Charged { layout, paid: [near, far, rings], may_grow: target.map(|left| left / SHARE) }),
    }
}

/// The layout with the largest rings that together take no more than `most` bytes.
fn smaller(counts: &DataCounts, most: u64) -> Option<DataLayout> {
    let mut counts = *counts;
    loop {
        let layout = DataLayout::new(&counts);
        let rings = layout.len.saturating_sub(layout.rings.off);
        if layout.rings.is_empty() || rings <= most {
            return Some(layout);
        }
        if counts.ring / 2 < LEAST_RING.max(counts.most) {
            return None;
        }
        counts.ring /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, MemoryLimits, SHARE, TooLittle, charge};
    use crate::layout::DataCounts;

    const MIB: u64 = 1 << 20;

    fn recording(cpus: u32) -> DataCounts {
        DataCounts {
            counters: 1,
            lines: cpus + 1,
            slot: 64,
            most: 64,
            ring: 16 << 20,
            ..DataCounts::default()
        }
    }
    fn left(target: Option<u64>, ours: u64) -> MemoryLimits {
        MemoryLimits { limited: true, target, ours }
    }
    fn paid(charged: &super::Charged) -> u64 {
        charged.paid.iter().map(|(from, to)| to - from).sum()
    }

    #[test]
    fn nothing_changes_where_there_is_no_limit() {
        let charged =
            charge(&recording(2), &MemoryLimits { ours: 1, ..MemoryLimits::default() }).expect("room");
        assert_eq!((paid(&charged), charged.layout.rings.bytes), (0, 16 << 20));
        assert_eq!(charged.may_grow, None);
    }

    #[test]
    fn the_tracer_pays_for_all_that_stubs_write() {
        let charged = charge(&recording(2), &left(Some(24 * MIB), 8 << 30)).expect("room");
        assert_eq!(paid(&charged), charged.layout.len);
        assert_eq!(charged.layout.rings.bytes, 16 << 20);
        assert_eq!(charged.may_grow, Some(24 * MIB / SHARE));
    }

    #[test]
    fn rings_shrink_to_a_share_of_what_the_tracer_may_take() {
        let charged = charge(&recording(2), &left(None, 64 * MIB)).expect("room");
        assert_eq!(charged.layout.rings.bytes, 2 << 20);
        assert!(paid(&charged) <= 8 * MIB);
        let many = charge(&recording(128), &left(None, 1 << 40)).expect("room");
        assert!(paid(&many) <= MOST);
        assert_eq!(many.layout.rings.bytes, 1 << 20);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let small = charge(&recording(2), &left(Some(100 << 10), 8 << 30));
        assert!(
            matches!(small, Err(TooLittle::Target { left, needed }) if left == 100 << 10 && needed > left)
        );
        let poor = charge(&recording(2), &left(Some(24 * MIB), 256 << 10));
        assert!(matches!(poor, Err(TooLittle::Ours { needed, .. }) if needed > 8 * (64 << 10)));
    }

    #[test]
    fn tables_that_are_too_large_stay_sparse() {
        let lat = DataCounts { latency: 77_000, counters: 77_000, lines: 65, ..DataCounts::default() };
        let charged = charge(&lat, &left(Some(512 * MIB), 64 << 30)).expect("room");
        assert!(paid(&charged) < MOST && paid(&charged) >= charged.layout.near);
        assert_eq!(charged.may_grow, Some(64 * MIB));
        let few = DataCounts { latency: 10, counters: 10, ..lat };
        let charged = charge(&few, &left(Some(512 * MIB), 64 << 30)).expect("room");
        assert_eq!(paid(&charged), charged.layout.len);
    }
}
