//! Reports as metrics: what is offered, under which names.
//!
//! In: the reports of one moment. Out: families of series. Invariants: MET-1 no series occurs twice; MET-2 a
//! counter or a part of a histogram never decreases while its process is traced: bounds never change, and the
//! count below a bound only grows. Does not: split by thread or CPU, which would make series without end;
//! write ([`super::text`], [`super::otlp`]).

use std::collections::BTreeMap;

use trapline::{Count, ProcessReport, Site, Times};

use crate::report::workload;

/// Upper bounds of the histogram buckets of durations, in nanoseconds: powers of two from 64 ns to 17 s.
pub(crate) fn bounds() -> impl Iterator<Item = u64> {
    (6..=34).map(|power| 1 << power)
}

/// The labels by which series of one name differ. Names have dots, as in OpenTelemetry.
pub(crate) type Labels = Vec<(&'static str, Label)>;

/// The value of one label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Label {
    Text(String),
    Number(u64),
}

/// Series of one name, by their labels. If a process runs the same program again, one series is the sum of
/// both runs.
pub(crate) type Series = BTreeMap<Labels, u64>;

/// All series of one name.
#[derive(Debug)]
pub(crate) struct Family {
    /// The name without prefix, unit and suffix.
    pub(crate) name: &'static str,
    /// A description for people.
    pub(crate) help: &'static str,
    pub(crate) values: Values,
}

/// The series of a family.
#[derive(Debug)]
pub(crate) enum Values {
    /// Values that hold now.
    Gauge(Series),
    /// Values that only grow.
    Counter(Series),
    /// Numbers of calls by duration.
    Durations(BTreeMap<Labels, Times>),
}

/// All metrics; families without a series are left out.
pub(crate) fn families(reports: &[ProcessReport]) -> Vec<Family> {
    let processes = |of: &dyn Fn(&ProcessReport) -> u64| -> Series {
        sum(reports.iter().map(|report| (process(report), of(report))))
    };
    let field = |of: fn(&Times) -> u64| -> Series {
        sum(reports.iter().flat_map(|report| timed(report).map(move |(labels, times)| (labels, of(times)))))
    };
    let hits = |report| counted(report).map(|(labels, count)| (labels, count.hits));
    let version = vec![("version", Label::Text(env!("CARGO_PKG_VERSION").to_owned()))];
    let gauge = |name, help, series| Family { name, help, values: Values::Gauge(series) };
    let counter = |name, help, series| Family { name, help, values: Values::Counter(series) };
    let all = vec![
        gauge("build_info", "Version of trapline.", BTreeMap::from([(version, 1)])),
        gauge(
            "process_traced",
            "Whether the process is there and traced.",
            processes(&|report| u64::from(report.ended.is_none())),
        ),
        gauge(
            "refused_sites",
            "Functions that were asked for and are not probed.",
            processes(&|report| report.refused.len() as u64),
        ),
        counter("missed_hits", "Hits that could not be recorded.", processes(&|report| report.missed)),
        counter(
            "interrupted_syscalls",
            "System calls that returned EINTR because of us.",
            processes(&|report| report.interrupted_syscalls),
        ),
        counter(
            "restarted_timeouts",
            "Calls with a timeout that were restarted in full.",
            processes(&|report| report.restarted_timeouts),
        ),
        counter("hits", "Hits of a function since attach.", sum(reports.iter().flat_map(hits))),
        gauge("calls_in_flight", "Calls that had begun and not ended.", field(|times| times.in_flight)),
        counter("unpaired_exits", "Exits without a known entry.", field(|times| times.unpaired)),
        counter("unreturned_calls", "Entries without an exit.", field(|times| times.unreturned)),
        durations(reports),
    ];
    all.into_iter().filter(|family| !family.is_empty()).collect()
}

fn durations(reports: &[ProcessReport]) -> Family {
    let mut all: BTreeMap<Labels, Times> = BTreeMap::new();
    for (labels, times) in reports.iter().flat_map(timed).filter(|(_, times)| times.calls > 0) {
        let sum = all.entry(labels).or_default();
        *sum = Times::sum([&*sum, times]);
    }
    let help = "Time from a function's entry to its end.";
    Family { name: "call_duration", help, values: Values::Durations(all) }
}

impl Family {
    fn is_empty(&self) -> bool {
        match &self.values {
            Values::Gauge(series) | Values::Counter(series) => series.is_empty(),
            Values::Durations(all) => all.is_empty(),
        }
    }
}

fn sum(all: impl IntoIterator<Item = (Labels, u64)>) -> Series {
    let mut series = Series::new();
    all.into_iter().for_each(|(labels, value)| *series.entry(labels).or_default() += value);
    series
}

fn counted(report: &ProcessReport) -> impl Iterator<Item = (Labels, &Count)> {
    report.counts.iter().map(|count| (labels(report, &count.site), count))
}

fn timed(report: &ProcessReport) -> impl Iterator<Item = (Labels, &Times)> {
    report.times.iter().filter_map(|times| Some((labels(report, times.site.as_ref()?), times)))
}

fn process(report: &ProcessReport) -> Labels {
    let own = [("pid", Label::Number(report.pid.into())), ("process", Label::Text(report.name.clone()))];
    let others = workload::labels(&report.workload).into_iter();
    own.into_iter().chain(others.map(|(name, text)| (name, Label::Text(text.to_owned())))).collect()
}

fn labels(report: &ProcessReport, site: &Site) -> Labels {
    let mut labels = process(report);
    labels.push(("function", Label::Text(site.label.clone())));
    labels.push(("probe", Label::Text(site.probe.clone())));
    labels.push(("offset", Label::Number(site.offset)));
    labels
}
