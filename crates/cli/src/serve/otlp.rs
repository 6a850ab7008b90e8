//! Metrics for OpenTelemetry: one `ExportMetricsServiceRequest` of OTLP 1. Field numbers are those of its
//! `metrics.proto`, `common.proto`, `resource.proto` and `metrics_service.proto`
//! (<https://opentelemetry.io/docs/specs/otlp/>).
//!
//! In: the reports of one moment. Out: bytes. All values are cumulative since the session's start, so the
//! next request makes up for a lost one. Does not: name metrics ([`super::metrics`]), or send.

use prost::{Message, Oneof};
use trapline::{ProcessReport, Times};

use super::metrics::{Family, Label, Labels, Series, Values, bounds, families};

/// Begin and end of the measured time, in nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    pub(crate) start: u64,
    pub(crate) now: u64,
}

/// The body of a request to a collector. Without reports it holds no metrics, which is a way to check whether
/// the collector is there.
pub(crate) fn request(reports: &[ProcessReport], period: Period) -> Vec<u8> {
    let metrics: Vec<Metric> = match reports {
        [] => Vec::new(),
        _ => families(reports).iter().map(|family| metric(family, period)).collect(),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let resource = [("service.name", "trapline".to_owned()), ("service.version", version.clone())];
    let attributes = resource.map(|(name, text)| pair(name, &Label::Text(text))).to_vec();
    let scope = Scope { name: "trapline".to_owned(), version };
    let one = ResourceMetrics {
        resource: Some(Resource { attributes }),
        scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics }],
    };
    let resource_metrics = if reports.is_empty() { Vec::new() } else { vec![one] };
    Request { resource_metrics }.encode_to_vec()
}

fn metric(family: &Family, period: Period) -> Metric {
    const CUMULATIVE: i32 = 2;
    let (unit, data) = match &family.values {
        Values::Gauge(series) => ("", Data::Gauge(Gauge { data_points: numbers(series, period) })),
        Values::Counter(series) => {
            let data_points = numbers(series, period);
            ("1", Data::Sum(Sum { data_points, aggregation_temporality: CUMULATIVE, is_monotonic: true }))
        }
        Values::Durations(all) => {
            let data_points = all.iter().map(|(labels, times)| histogram(labels, times, period)).collect();
            ("s", Data::Histogram(Histogram { data_points, aggregation_temporality: CUMULATIVE }))
        }
    };
    Metric {
        name: format!("trapline.{}", family.name),
        description: family.help.to_owned(),
        unit: unit.to_owned(),
        data: Some(data),
    }
}

fn numbers(series: &Series, Period { start, now }: Period) -> Vec<NumberPoint> {
    let point = |(labels, &value): (&Labels, &u64)| NumberPoint {
        start_time_unix_nano: start,
        time_unix_nano: now,
        as_int: Some(i64::try_from(value).unwrap_or(i64::MAX)),
        attributes: attributes(labels),
    };
    series.iter().map(point).collect()
}

fn histogram(labels: &Labels, times: &Times, Period { start, now }: Period) -> HistogramPoint {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut below = 0;
    let mut bucket_counts: Vec<u64> = bounds()
        .map(|ns| times.histogram.up_to(ns))
        .map(|all| all - std::mem::replace(&mut below, all))
        .collect();
    bucket_counts.push(times.calls.saturating_sub(below));
    HistogramPoint {
        start_time_unix_nano: start,
        time_unix_nano: now,
        count: bucket_counts.iter().sum(),
        sum: Some(seconds(times.total_ns)),
        bucket_counts,
        explicit_bounds: bounds().map(seconds).collect(),
        attributes: attributes(labels),
        min: Some(seconds(times.min_ns)),
        max: Some(seconds(times.max_ns)),
    }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, label)| pair(name, label)).collect()
}

fn pair(name: &str, label: &Label) -> KeyValue {
    let value = match label {
        Label::Text(text) => Any::Text(text.clone()),
        Label::Number(number) => Any::Number(i64::try_from(*number).unwrap_or(i64::MAX)),
    };
    KeyValue { key: name.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct NumberPoint {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(sfixed64, optional, tag = "6")]
    as_int: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct HistogramPoint {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(double, optional, tag = "11")]
    min: Option<f64>,
    #[prost(double, optional, tag = "12")]
    max: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Any", tags = "1, 3")]
    value: Option<Any>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Any {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[cfg(test)]
mod tests {
    use super::{Data, Period, Request, request};
    use crate::report::samples::{sample, timed};
    use prost::Message as _;

    const PERIOD: Period = Period { start: 10, now: 20 };

    #[test]
    fn no_metrics_make_an_empty_request() {
        assert!(request(&[], PERIOD).is_empty());
    }

    #[test]
    fn a_histograms_buckets_add_up() {
        let request = Request::decode(&*request(&[timed()], PERIOD)).expect("ours");
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let durations = metrics.iter().find(|metric| metric.name == "trapline.call_duration").expect("there");
        let Some(Data::Histogram(histogram)) = &durations.data else { panic!("{durations:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.bucket_counts.iter().sum::<u64>()), (3, 3));
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        // One bucket holds 100 and 101 ns, another 310 ns.
        assert_eq!(point.bucket_counts[..4], [0, 2, 0, 1]);
        assert_eq!((point.sum, point.start_time_unix_nano, point.time_unix_nano), (Some(511e-9), 10, 20));
    }

    #[test]
    fn hits_are_a_sum_that_only_grows() {
        let request = Request::decode(&*request(&[sample()], PERIOD)).expect("ours");
        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let hits = metrics.iter().find(|metric| metric.name == "trapline.hits").expect("there");
        let Some(Data::Sum(sum)) = &hits.data else { panic!("{hits:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        let values: Vec<Option<i64>> = sum.data_points.iter().map(|point| point.as_int).collect();
        assert_eq!(values, [Some(0), Some(1500), Some(20)], "by name: idle, libfoo:bar, work");
    }
}
