//! Turns samples into rows: rates and percentiles of the last interval, and the history of the rate.
//!
//! In: the reports of a session, each time for all its processes. Out: rows, in the order in which sites were
//! first seen. Durations are in nanoseconds, rates are per second.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use trapline::{Histogram, ProcessReport, Site, Times};

use crate::report::site;

/// Number of rates kept for each row: the widest sparkline.
pub(crate) const HISTORY: usize = 120;

/// All rows, and the totals.
#[derive(Debug, Default)]
pub(crate) struct Model {
    rows: Vec<TopRow>,
    index: HashMap<SiteKey, usize>,
    /// Processes as last seen: pid and name.
    pub(crate) processes: Vec<(u32, String)>,
    /// Hits that could not be recorded.
    pub(crate) missed: u64,
    /// Seconds since the attach to the first process.
    pub(crate) seconds: f64,
}

/// A site of one process. If the process executes another program, a row is kept where the site is the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SiteKey {
    pid: u32,
    probe: String,
    offset: u64,
}

/// One function of one process.
#[derive(Debug, Default)]
pub(crate) struct TopRow {
    /// The process.
    pub(crate) pid: u32,
    /// The function's name for people.
    pub(crate) label: String,
    /// Hits, or calls that ended, since the attach.
    pub(crate) total: u64,
    /// Hits or calls per second in the last interval.
    pub(crate) rate: f64,
    /// Hits or calls per second since the attach.
    pub(crate) mean_rate: f64,
    /// Median and 99th percentile of the calls that ended in the last interval.
    pub(crate) recent: Option<Percentiles>,
    /// Median and 99th percentile since the attach.
    pub(crate) whole: Option<Percentiles>,
    /// Rates of the last intervals, the newest one last.
    pub(crate) history: VecDeque<f64>,
    histogram: Histogram,
}

/// Percentiles in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
}

/// The values of one site in one sample.
#[derive(Default)]
struct Sample {
    total: u64,
    times: Times,
    seconds: f64,
    interval: f64,
    label: String,
}

impl Model {
    /// Rows, in the order in which they were first seen.
    pub(crate) fn rows(&self) -> &[TopRow] {
        &self.rows
    }
    /// Takes the next sample.
    pub(crate) fn feed(&mut self, reports: &[ProcessReport]) {
        let mut samples: Vec<(SiteKey, Sample)> = Vec::new();
        let mut places: HashMap<SiteKey, usize> = HashMap::new();
        let mut add = |report: &ProcessReport, site: &Arc<Site>, total: u64, times: &Times| {
            let key = SiteKey { pid: report.pid, probe: site.probe.clone(), offset: site.offset };
            let place = *places.entry(key.clone()).or_insert(samples.len());
            if place == samples.len() {
                samples.push((key, Sample::default()));
            }
            let sample = &mut samples[place].1;
            sample.total += total;
            sample.times = Times::sum([&sample.times, times]);
            sample.seconds = sample.seconds.max(report.seconds);
            sample.interval = report.delta_seconds;
            sample.label = site::name(site).into_owned();
        };
        for report in reports {
            report.counts.iter().for_each(|count| add(report, &count.site, count.hits, &Times::default()));
            for times in &report.times {
                if let Some(site) = &times.site {
                    add(report, site, times.calls, times);
                }
            }
        }
        for (key, sample) in samples {
            let place = *self.index.entry(key.clone()).or_insert(self.rows.len());
            if place == self.rows.len() {
                self.rows.push(TopRow { pid: key.pid, ..TopRow::default() });
            }
            self.rows[place].feed(sample);
        }
        self.missed = reports.iter().map(|report| report.missed).sum();
        self.seconds = reports.iter().map(|report| report.seconds).fold(self.seconds, f64::max);
        self.processes = reports.iter().map(|report| (report.pid, report.name.clone())).collect();
        self.processes.dedup_by_key(|process| process.0);
    }
}

impl TopRow {
    fn feed(&mut self, sample: Sample) {
        let per_second = |hits: u64, seconds: f64| if seconds > 0.0 { hits as f64 / seconds } else { 0.0 };
        self.rate = per_second(sample.total.saturating_sub(self.total), sample.interval);
        self.mean_rate = per_second(sample.total, sample.seconds);
        self.total = sample.total;
        self.label = sample.label;
        self.recent = percentiles(&sample.times.histogram.since(&self.histogram), &sample.times);
        self.whole = percentiles(&sample.times.histogram, &sample.times);
        self.histogram = sample.times.histogram;
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(self.rate);
    }
}

/// Percentiles of a part of these calls. They are kept between the shortest and the longest of all.
fn percentiles(histogram: &Histogram, of: &Times) -> Option<Percentiles> {
    let percentile = |share| histogram.percentile(share).max(of.min_ns).min(of.max_ns);
    (histogram.calls() > 0).then(|| Percentiles { p50: percentile(0.5), p99: percentile(0.99) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{HISTORY, Model};
    use crate::report::samples::{sample, timed};
    use trapline::ProcessReport;

    /// A later sample, with `more` additional hits of each function.
    pub(crate) fn later(more: [u64; 3], interval: f64) -> ProcessReport {
        let mut report = sample();
        for (count, more) in report.counts.iter_mut().zip(more) {
            count.hits += more;
            count.delta = more;
        }
        report.seconds += interval;
        report.delta_seconds = interval;
        report
    }

    #[test]
    fn rates_are_of_the_last_interval() {
        let mut model = Model::default();
        model.feed(&[sample()]);
        model.feed(&[later([10, 0, 300], 0.5)]);
        let rates: Vec<f64> = model.rows().iter().map(|row| row.rate).collect();
        let totals: Vec<u64> = model.rows().iter().map(|row| row.total).collect();
        assert_eq!((rates, totals), (vec![20.0, 0.0, 600.0], vec![30, 0, 1800]));
        assert_eq!(model.rows()[2].history, [1500.0, 600.0], "the first interval began at attach");
        assert_eq!((model.rows()[2].mean_rate, model.missed, model.seconds), (720.0, 1, 2.5));
    }

    #[test]
    fn percentiles_are_of_the_last_interval_and_of_all() {
        let mut model = Model::default();
        model.feed(&[timed()]);
        let row = &model.rows()[0];
        assert_eq!((row.total, row.recent), (3, row.whole));
        model.feed(&[timed()]);
        let row = &model.rows()[0];
        assert_eq!((row.rate, row.recent), (0.0, None), "nothing ended since");
        assert!(row.whole.is_some_and(|whole| whole.p50 < 128 && whole.p99 >= 300));
        let mut slower = timed();
        let mut buckets = vec![0; trapline::histogram::BUCKETS];
        for (ns, calls) in [(100, 2), (310, 1), (5000, 7)] {
            buckets[trapline::histogram::bucket(ns)] += calls;
        }
        (slower.times[0].calls, slower.times[0].max_ns) = (10, 5001);
        slower.times[0].histogram =
            trapline::Histogram::new(&buckets, trapline::histogram::TickScale::new(1.0));
        model.feed(&[slower]);
        let row = &model.rows()[0];
        assert!(row.recent.is_some_and(|recent| recent.p50 > 4500), "only the new ones: {row:?}");
        assert_eq!(row.rate, 7.0);
    }

    #[test]
    fn processes_and_programs_keep_apart() {
        let mut model = Model::default();
        let other = ProcessReport { pid: 43, ..sample() };
        // Process 42 executed another program, which has the same functions.
        let again = sample();
        model.feed(&[sample(), again, other]);
        let totals: Vec<(u32, u64)> = model.rows().iter().map(|row| (row.pid, row.total)).collect();
        assert_eq!(totals, [(42, 40), (42, 0), (42, 3000), (43, 20), (43, 0), (43, 1500)]);
        assert_eq!(model.processes.len(), 2);
    }

    #[test]
    fn history_is_bounded() {
        let mut model = Model::default();
        (0..HISTORY as u64 + 5).for_each(|n| model.feed(&[later([n, 0, 0], 1.0)]));
        assert_eq!(model.rows()[0].history.len(), HISTORY);
    }
}
