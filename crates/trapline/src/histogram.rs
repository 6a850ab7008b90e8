//! Histograms of durations: the 16 buckets per octave that the stubs fill, converted from ticks to
//! nanoseconds.
//!
//! Out: percentiles (off by at most 1/16), rows by powers of two, rows of equal steps. A bucket that
//! straddles a row's edge is divided in proportion, so that rows add up to the exact number of calls.

use trapline_order::Order as _;
use trapline_plan::Buckets;
use trapline_record::hist::bounds;
pub use trapline_record::hist::{BUCKETS, bucket};

/// Nanoseconds per tick.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TickScale(pub(crate) f64);

impl TickScale {
    /// Scale of a clock with a tick of so many nanoseconds.
    #[must_use]
    pub const fn new(ns_per_tick: f64) -> Self {
        Self(ns_per_tick)
    }
    /// Ticks to nanoseconds, rounded.
    #[must_use]
    pub fn nanos(self, ticks: u64) -> u64 {
        (ticks as f64 * self.0).round() as u64
    }
}

/// Equal steps in nanoseconds, into which stubs count directly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LinearBuckets {
    pub(crate) min: u64,
    pub(crate) max: u64,
    pub(crate) step: u64,
}

impl LinearBuckets {
    fn count(self) -> u64 {
        (self.max - self.min).div_ceil(self.step)
    }
    /// Buckets for stubs, if whole ticks come close enough: the last edge is off by less than a twentieth of
    /// a step.
    pub(crate) fn buckets(self, scale: TickScale) -> Option<Buckets> {
        if self.step == 0 || self.max <= self.min {
            return None;
        }
        let (count, ticks) = (self.count(), self.step as f64 / scale.0);
        let off = (ticks.round() - ticks).abs() * count as f64;
        let fits = count <= BUCKETS as u64 - 2 && ticks >= 1.0 && off < ticks / 20.0;
        let min = (self.min as f64 / scale.0).round() as u64;
        fits.then_some(Buckets::Linear { min, step: ticks.round() as u64, count: count as u32 })
    }
}

/// A histogram: rows (low, high, calls) in nanoseconds, half open, ascending, none empty. [`Times`] has one of
/// each function's durations.
///
/// [`Times`]: crate::Times
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Histogram {
    rows: Vec<(f64, f64, u64)>,
}

impl Eq for Histogram {}

/// A row to be drawn: half-open range, and calls.
pub type HistogramRow = (u64, u64, u64);

impl Histogram {
    /// Converts bucket counts (`counts[i]` calls in bucket `i` of [`trapline_record::hist`]).
    #[must_use]
    pub fn new(counts: &[u64], scale: TickScale) -> Self {
        let row = |(index, &calls): (usize, &u64)| {
            (calls > 0).then(|| {
                let (low, high) = bounds(index);
                (low as f64 * scale.0, high as f64 * scale.0, calls)
            })
        };
        Self { rows: counts.iter().enumerate().take(BUCKETS).filter_map(row).collect() }
    }
    /// Frees memory beyond its rows.
    pub(crate) fn shrink(&mut self) {
        self.rows.shrink_to_fit();
    }
    /// Converts counts by steps: below the first, each step, and above the last, up to `most`.
    pub(crate) fn by_steps(counts: &[u64], steps: LinearBuckets, most: u64) -> Self {
        let last = steps.count() as usize + 1;
        let edge = |n: usize| steps.min + (n as u64) * steps.step;
        let row = |(index, &calls): (usize, &u64)| {
            let (low, high) = match index {
                0 => (0, steps.min),
                _ if index == last => (steps.max, most.max(steps.max) + 1),
                _ => (edge(index - 1), edge(index).min(steps.max)),
            };
            (calls > 0).then_some((low as f64, high as f64, calls))
        };
        Self { rows: counts.iter().enumerate().take(last + 1).filter_map(row).collect() }
    }
    /// Its rows: lower and upper edge in nanoseconds, which may be fractions, and calls; none is empty.
    pub fn rows(&self) -> impl Iterator<Item = (f64, f64, u64)> {
        self.rows.iter().copied()
    }
    /// Number of calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.rows.iter().map(|row| row.2).sum()
    }
    /// Duration that a share `of` (0 to 1) of the calls did not exceed, in nanoseconds: the middle of its
    /// bucket, off by at most 1/32 of it.
    #[must_use]
    pub fn percentile(&self, of: f64) -> u64 {
        let wanted = (self.calls() as f64 * of).ceil().max(1.0) as u64;
        let mut seen = 0;
        for &(low, high, calls) in &self.rows {
            seen += calls;
            if seen >= wanted {
                return f64::midpoint(low, high).floor() as u64;
            }
        }
        0
    }
    /// Sum of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let mut rows: Vec<(f64, f64, u64)> = self.rows.iter().chain(&other.rows).copied().collect();
        rows.order_by(|a, b| a.0.total_cmp(&b.0));
        rows.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.2 += next.2;
            }
            same
        });
        Self { rows }
    }
    /// Calls of at most so many nanoseconds. Of a bucket that holds shorter and longer ones, a proportional
    /// part counts, so the number never decreases while calls are added.
    #[must_use]
    pub fn up_to(&self, ns: u64) -> u64 {
        let part = |&(low, high, calls): &(f64, f64, u64)| match ns as f64 {
            ns if high <= ns => calls,
            ns if low >= ns => 0,
            ns => (calls as f64 * ((ns - low) / (high - low))) as u64,
        };
        self.rows.iter().map(part).sum()
    }
    /// Calls that `earlier`, a reading of the same counters, did not have.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut before = earlier.rows.iter().peekable();
        let new = |&(low, high, calls): &(f64, f64, u64)| {
            while before.next_if(|row| row.0 < low).is_some() {}
            let old = before.next_if(|row| row.0 == low).map_or(0, |row| row.2);
            (calls > old).then(|| (low, high, calls - old))
        };
        Self { rows: self.rows.iter().filter_map(new).collect() }
    }
    /// Rows by powers of two of `unit_ns`, from the first to the last that has calls, including empty ones
    /// between.
    #[must_use]
    pub fn log2(&self, unit_ns: u64) -> Vec<HistogramRow> {
        let edge = |n: u32| if n == 0 { 0 } else { 1u64 << n.min(63) };
        let rows =
            self.share(unit_ns, |value| if value < 2.0 { 0 } else { value.log2().floor() as u32 }, edge);
        fill(rows, |low| if low == 0 { 2 } else { low.saturating_mul(2) })
    }
    /// Rows of equal steps from `min` to `max`, in `unit_ns`. The first and the last number are the calls
    /// below and above.
    #[must_use]
    pub fn linear(&self, unit_ns: u64, min: u64, max: u64, step: u64) -> (u64, Vec<HistogramRow>, u64) {
        let (mut below, mut above) = (0, 0);
        let edge = |n: u32| min.saturating_add(u64::from(n) * step);
        let index = |value: f64| ((value - min as f64) / step as f64).floor().max(0.0) as u32;
        let mut inside = Self::default();
        for &(low, high, calls) in &self.rows {
            let middle = f64::midpoint(low, high) / unit_ns as f64;
            if middle < min as f64 {
                below += calls;
            } else if middle >= max as f64 {
                above += calls;
            } else {
                inside.rows.push((low.max((min * unit_ns) as f64), high.min((max * unit_ns) as f64), calls));
            }
        }
        (below, fill(inside.share(unit_ns, index, edge), |low| low + step), above)
    }
    /// Divides buckets among rows that begin at `edge(n)`, where `index` gives the row of a value.
    fn share(
        &self,
        unit_ns: u64,
        index: impl Fn(f64) -> u32,
        edge: impl Fn(u32) -> u64,
    ) -> Vec<HistogramRow> {
        let mut out: Vec<HistogramRow> = Vec::new();
        let mut put = |row: u32, calls: u64| {
            let (low, high) = (edge(row), edge(row + 1));
            match out.last_mut() {
                _ if calls == 0 => {}
                Some(last) if last.0 == low => last.2 += calls,
                _ => out.push((low, high, calls)),
            }
        };
        for &(low, high, calls) in &self.rows {
            let (low, high) = (low / unit_ns as f64, high / unit_ns as f64);
            let (mut row, mut left) = (index(low), calls);
            while (edge(row + 1) as f64) < high && left > 0 {
                let inner = edge(row + 1) as f64 - low.max(edge(row) as f64);
                let part = ((calls as f64 * inner / (high - low)).round() as u64).min(left);
                put(row, part);
                left -= part;
                row += 1;
            }
            put(row, left);
        }
        out
    }
}

/// Adds empty rows in gaps.
fn fill(rows: Vec<HistogramRow>, next: impl Fn(u64) -> u64) -> Vec<HistogramRow> {
    let mut out: Vec<HistogramRow> = Vec::with_capacity(rows.len());
    for row in rows {
        while let Some(last) = out.last().filter(|last| last.1 < row.0) {
            let low = last.1;
            out.push((low, next(low), 0));
        }
        out.push(row);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Histogram, LinearBuckets, TickScale, bucket};
    use trapline_plan::Buckets;

    fn of(values: &[u64], scale: f64) -> Histogram {
        let mut counts = vec![0; BUCKETS];
        values.iter().for_each(|&v| counts[bucket(v)] += 1);
        Histogram::new(&counts, TickScale(scale))
    }

    #[test]
    fn percentiles_are_within_a_bucket() {
        let values: Vec<u64> = (1..=10_000).collect();
        let histogram = of(&values, 0.4);
        for (share, exact) in [(0.5, 2000.0), (0.9, 3600.0), (0.99, 3960.0), (0.999, 3996.0)] {
            let got = histogram.percentile(share) as f64;
            assert!((got - exact).abs() <= exact / 16.0, "p{share}: {got} for {exact}");
        }
        assert_eq!(Histogram::default().percentile(0.5), 0);
    }

    #[test]
    fn rows_add_up() {
        let values: Vec<u64> = (0..5000).map(|i| i * i % 70_001).collect();
        let histogram = of(&values, 0.3718);
        let rows = histogram.log2(1);
        assert_eq!(rows.iter().map(|r| r.2).sum::<u64>(), 5000);
        assert!(rows.windows(2).all(|w| w[0].1 == w[1].0), "{rows:?}");
        let (below, rows, above) = histogram.linear(1, 100, 20_000, 500);
        assert_eq!(below + above + rows.iter().map(|r| r.2).sum::<u64>(), 5000);
        assert!(rows.windows(2).all(|w| w[0].1 == w[1].0), "{rows:?}");
    }

    #[test]
    fn powers_of_two_are_exact_at_one_tick_per_ns() {
        let rows = of(&[0, 1, 2, 3, 4, 100, 127, 128, 1000], 1.0).log2(1);
        let some: Vec<_> = rows.iter().filter(|r| r.2 > 0).copied().collect();
        assert_eq!(some, [(0, 2, 2), (2, 4, 2), (4, 8, 1), (64, 128, 2), (128, 256, 1), (512, 1024, 1)]);
    }

    #[test]
    fn steps_that_the_stubs_count_are_not_shared_out() {
        let steps = LinearBuckets { min: 100, max: 500, step: 100 };
        let wanted = Buckets::Linear { min: 250, step: 250, count: 4 };
        assert_eq!(steps.buckets(TickScale(0.4)), Some(wanted));
        assert_eq!(
            LinearBuckets { step: 1, ..steps }.buckets(TickScale(0.4)),
            None,
            "no whole number of ticks"
        );
        let histogram = Histogram::by_steps(&[5, 0, 7, 1, 0, 3], steps, 9000);
        let rows = vec![(200, 300, 7), (300, 400, 1)];
        assert_eq!((histogram.calls(), histogram.linear(1, 100, 500, 100)), (16, (5, rows, 3)));
    }

    #[test]
    fn calls_up_to_a_bound_never_go_back() {
        let values: Vec<u64> = (0..3000).map(|i| i * i % 9001).collect();
        let bounds = [0, 64, 100, 128, 1000, 1024, 4096, 9001];
        let mut before = bounds.map(|_| 0);
        for n in 0..=values.len() {
            let histogram = of(&values[..n], 0.3718);
            let now = bounds.map(|bound| histogram.up_to(bound));
            assert!(
                now.is_sorted() && now.iter().zip(before).all(|(now, before)| *now >= before),
                "{n}: {now:?}"
            );
            before = now;
        }
        assert_eq!((before[0], before[7]), (0, 3000));
        assert_eq!(of(&[1, 2, 3, 4, 5], 1.0).up_to(4), 3);
    }

    #[test]
    fn what_is_new_is_distinguished_from_what_was_there() {
        let (earlier, later) = (of(&[100, 100, 3000], 1.0), of(&[7, 100, 100, 100, 3000, 9000], 1.0));
        assert_eq!(later.since(&earlier), of(&[7, 100, 9000], 1.0));
        assert_eq!(
            (later.since(&later), later.since(&Histogram::default())),
            (Histogram::default(), later.clone())
        );
    }

    #[test]
    fn spreads_add_up() {
        let sum = of(&[3000, 4000], 1.0).plus(&of(&[3000], 1.0));
        assert_eq!((sum.calls(), sum.log2(1).iter().map(|r| r.2).sum::<u64>()), (3, 3));
    }
}
