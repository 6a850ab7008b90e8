//! Reads latency areas into durations: sums over lines and batches, and converts ticks to nanoseconds.

use std::collections::HashMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use trapline_patch::Segment;
use trapline_record::hist::BUCKETS;
use trapline_record::latency::{STAMP_BLOCK, STAMP_TAGS_LEN, STAMPS_LEN, STRIDE, Stamps, at};
use trapline_record::view::View;
use trapline_record::{RemoteAddr, control};
use trapline_tracee::Process;

use crate::histogram::{Histogram, LinearBuckets, TickScale};
use crate::report::{Site, Times};

/// Calls of each function (by latency area) that have a stamp and no exit yet, in one process; `None` if its
/// memory is gone. Forked children have stamps of their own, which are not read here.
pub(crate) fn in_flight(process: &Process, segment: &Segment) -> Option<HashMap<u32, u64>> {
    let view = segment.view();
    let (stamps, len) = (RemoteAddr(view.get(control::at::STAMPS_ADDR)), view.get(control::at::STAMPS_LEN));
    let mut found = HashMap::new();
    if len != STAMPS_LEN {
        return Some(found);
    }
    let mut tags = vec![0u8; STAMP_TAGS_LEN as usize];
    process.read(stamps, &mut tags).ok()?;
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let mut block = vec![0u8; STAMP_BLOCK as usize];
    for (nth, _) in (0u64..).zip(tags.chunks_exact(8)).filter(|(_, tag)| word(tag) != 0) {
        process.read(stamps + (STAMP_TAGS_LEN + nth * STAMP_BLOCK), &mut block).ok()?;
        for cell in block.chunks_exact(16) {
            if let Some(function) = (word(&cell[8..]) as u32).checked_sub(1) {
                *found.entry(function).or_default() += 1;
            }
        }
    }
    Some(found)
}

/// Bytes of memory behind the stamps; 0 if the process is gone.
pub(crate) fn stamps_resident(process: &Process, segment: &Segment) -> u64 {
    const PAGE: u64 = 4096;
    const PRESENT_OR_SWAPPED: u64 = 0b11 << 62;
    let view = segment.view();
    let (addr, len) = (view.get(control::at::STAMPS_ADDR), view.get(control::at::STAMPS_LEN));
    let len = if Stamps::is_len(len) { len } else { 0 };
    let mut entries = vec![0u8; (len / PAGE * 8) as usize];
    let pagemap = std::fs::File::open(process.folder().join("pagemap"));
    if pagemap.and_then(|map| map.read_exact_at(&mut entries, addr / PAGE * 8)).is_err() {
        return 0;
    }
    let words = entries.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
    PAGE * words.filter(|word| word & PRESENT_OR_SWAPPED != 0).count() as u64
}

/// Whether a range of bytes overlaps one that was written to; `written` is in order.
fn is_written(written: &[Range<u64>], from: u64, to: u64) -> bool {
    let next = written.partition_point(|one| one.end <= from);
    written.get(next).is_some_and(|one| one.start < to)
}

/// Sums of one function's latency areas, in ticks.
#[derive(Default)]
struct Sums {
    /// As listed in [`Sums::add`].
    words: [u64; 6],
    /// Calls that were armed.
    begun: u64,
    min_not: u64,
    max: u64,
    /// Most functions have no calls, so this allocates nothing before the first.
    buckets: Vec<u64>,
}

impl Sums {
    /// Adds the area that begins at `base`.
    fn add(&mut self, view: View<'_>, base: u64) {
        let words = [at::RETURNS, at::TAIL_EXITS, at::UNPAIRED, at::UNRETURNED, at::CLAMPED, at::TOTAL];
        for (sum, word) in self.words.iter_mut().zip(words) {
            *sum = sum.wrapping_add(view.get(base + word));
        }
        // Most lines of most functions were never written: their buckets are skipped, and so stay
        // unallocated. A call that is kept has another of these words first, or is counted by its bucket alone
        // and has its total and minimum there.
        let ended = [at::RETURNS, at::TAIL_EXITS, at::TOTAL, at::MIN_NOT].map(|word| view.get(base + word));
        if ended == [0; 4] {
            return;
        }
        self.min_not = self.min_not.max(view.get(base + at::MIN_NOT));
        self.max = self.max.max(view.get(base + at::MAX));
        self.buckets.resize(BUCKETS, 0);
        for (bucket, nth) in self.buckets.iter_mut().zip(0u64..) {
            *bucket += view.get(base + at::BUCKETS + nth * 8);
        }
    }
    /// Armed calls that have not ended. Calls that were kept are in buckets. Others, and those that ended by the
    /// function's own exits, are counted besides.
    fn not_ended(&self) -> u64 {
        let [returns, tail_exits, _, unreturned, ..] = self.words;
        let kept: u64 = self.buckets.iter().sum();
        self.begun.saturating_sub(kept.max(returns.wrapping_add(tail_exits)).saturating_add(unreturned))
    }
}

/// Blocks of a function in one segment that were written to: reading others would allocate pages of zeros.
fn written_blocks<'a>(
    (segment, written, index): (&'a Segment, &'a [Range<u64>], u32),
) -> impl Iterator<Item = (View<'a>, u64)> {
    let first = segment.layout().latency(index);
    let blocks = (0..u64::from(segment.counters().lines)).map(move |line| first + line * STRIDE);
    let blocks = blocks.filter(|base| is_written(written, *base, base + STRIDE));
    blocks.map(|base| (segment.view(), base))
}

/// Reads one function's latency areas. Calls in flight are those that were armed and have not ended; others
/// leave nothing there.
pub(crate) fn read_times<'a>(
    areas: impl Iterator<Item = (&'a Segment, &'a [Range<u64>], u32)> + Clone,
    site: Arc<Site>,
    scale: TickScale,
    steps: Option<LinearBuckets>,
) -> Times {
    let mut sums = Sums::default();
    // In this order: what begins in between may end in between, and is not in flight.
    let begun = areas.clone().flat_map(written_blocks).map(|(view, base)| view.get(base + at::BEGUN));
    sums.begun = begun.fold(0, u64::wrapping_add);
    areas.flat_map(written_blocks).for_each(|(view, base)| sums.add(view, base));
    let in_flight = sums.not_ended();
    let Sums { words, min_not, max, buckets, .. } = sums;
    let [_, tail_exits, unpaired, unreturned, clamped, total] = words;
    Times {
        site: Some(site),
        calls: buckets.iter().sum(),
        tail_exits,
        in_flight,
        unpaired,
        unreturned,
        clamped,
        total_ns: scale.nanos(total),
        min_ns: if min_not == 0 { 0 } else { scale.nanos(!min_not) },
        max_ns: scale.nanos(max),
        histogram: match steps {
            Some(steps) => Histogram::by_steps(&buckets, steps, scale.nanos(max)),
            None => Histogram::new(&buckets, scale),
        },
    }
}
