//! Latency areas to durations: sums over lines and batches, ticks to nanoseconds.

use std::sync::Arc;

use trapline_patch::Segment;
use trapline_record::hist::BUCKETS;
use trapline_record::latency::{STRIDE, at};

use crate::report::{Site, Times};
use crate::spread::{Scale, Spread};

/// Reads one function's areas. `entries` is how often it was entered.
pub(crate) fn read_times<'a>(
    areas: impl Iterator<Item = (&'a Segment, u32)>,
    site: Arc<Site>,
    entries: u64,
    scale: Scale,
) -> Times {
    let mut sums = [0u64; 6];
    let (mut min_not, mut max) = (0u64, 0u64);
    let mut buckets = vec![0u64; BUCKETS];
    for (segment, index) in areas {
        let view = segment.view();
        let first = segment.layout().latency(index);
        for line in 0..u64::from(segment.counters().lines) {
            let base = first + line * STRIDE;
            let words = [at::RETURNS, at::TAIL_EXITS, at::UNPAIRED, at::UNRETURNED, at::CLAMPED, at::TOTAL];
            for (sum, word) in sums.iter_mut().zip(words) {
                *sum = sum.wrapping_add(view.get(base + word));
            }
            // Most lines of most functions were never written: leave their buckets untouched, and so unallocated.
            if view.get(base + at::RETURNS) + view.get(base + at::TAIL_EXITS) == 0 {
                continue;
            }
            min_not = min_not.max(view.get(base + at::MIN_NOT));
            max = max.max(view.get(base + at::MAX));
            for (bucket, nth) in buckets.iter_mut().zip(0u64..) {
                *bucket += view.get(base + at::BUCKETS + nth * 8);
            }
        }
    }
    let [returns, tail_exits, unpaired, unreturned, clamped, total] = sums;
    let ended = returns + tail_exits;
    Times {
        site: Some(site),
        calls: buckets.iter().sum(),
        tail_exits,
        in_flight: entries.saturating_sub(ended).saturating_sub(unreturned),
        unpaired,
        unreturned,
        clamped,
        total_ns: scale.nanos(total),
        min_ns: if min_not == 0 { 0 } else { scale.nanos(!min_not) },
        max_ns: scale.nanos(max),
        spread: Spread::new(&buckets, scale),
    }
}
