//! Metrics as text: the exposition format 0.0.4 of Prometheus, or OpenMetrics 1.0.
//!
//! In: the reports of one moment. Out: text. Does not: name metrics ([`super::metrics`]).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use trapline::{ProcessReport, Times};

use super::metrics::{Label, Labels, Series, Values, bounds, families};

/// How the text is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exposition {
    /// Text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Exposition {
    /// The format that an `Accept` header asks for.
    pub(crate) fn wanted(accept: &str) -> Self {
        let first = |text: &str| text.split(';').next().unwrap_or_default().trim().to_owned();
        let wants = accept.split(',').any(|range| first(range) == "application/openmetrics-text");
        if wants { Self::OpenMetrics } else { Self::Prometheus }
    }
    /// The value for the header of the answer.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// All metrics.
pub(crate) fn text(reports: &[ProcessReport], how: Exposition) -> String {
    let mut out = Text { out: String::new(), how };
    for family in families(reports) {
        match &family.values {
            Values::Gauge(series) => out.family(family.name, "", "gauge", family.help, series),
            Values::Counter(series) => out.family(family.name, "_total", "counter", family.help, series),
            Values::Durations(all) => {
                out.durations(&format!("{}_seconds", family.name), family.help, all);
            }
        }
    }
    if how == Exposition::OpenMetrics {
        out.out.push_str("# EOF\n");
    }
    out.out
}

/// Labels of a sample. Names have underscores here in place of dots.
fn shown(labels: &Labels) -> String {
    let one = |(name, label): &(&str, Label)| {
        let name = name.replace('.', "_");
        match label {
            Label::Text(text) => format!("{name}=\"{}\"", escaped(text)),
            Label::Number(number) => format!("{name}=\"{number}\""),
        }
    };
    labels.iter().map(one).collect::<Vec<String>>().join(",")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text written so far.
struct Text {
    out: String,
    how: Exposition,
}

impl Text {
    /// Writes a family. In OpenMetrics its name lacks the suffix of its samples.
    fn family(&mut self, name: &str, suffix: &str, kind: &str, help: &str, series: &Series) {
        let family = if self.how == Exposition::OpenMetrics { "" } else { suffix };
        self.head(&format!("{name}{family}"), kind, help);
        for (labels, value) in series {
            self.sample(&format!("{name}{suffix}"), &shown(labels), value);
        }
    }
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP trapline_{name} {help}\n# TYPE trapline_{name} {kind}\n"));
    }
    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        self.line(format_args!("trapline_{name}{{{labels}}} {value}\n"));
    }
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        self.out.write_fmt(line).unwrap_or_default();
    }
    fn durations(&mut self, name: &str, help: &str, all: &BTreeMap<Labels, Times>) {
        self.head(name, "histogram", help);
        if self.how == Exposition::OpenMetrics {
            self.line(format_args!("# UNIT trapline_{name} seconds\n"));
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let bucket = format!("{name}_bucket");
        for (labels, times) in all {
            let labels = &shown(labels);
            for ns in bounds() {
                let labels = format!("{labels},le=\"{}\"", seconds(ns));
                self.sample(&bucket, &labels, times.histogram.up_to(ns));
            }
            self.sample(&bucket, &format!("{labels},le=\"+Inf\""), times.calls);
            self.sample(&format!("{name}_sum"), labels, seconds(times.total_ns));
            self.sample(&format!("{name}_count"), labels, times.calls);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Exposition, text};
    use crate::report::samples::{sample, timed};
    use trapline::ProcessReport;

    #[test]
    fn counts_are_counters() {
        let wanted = r#"# HELP trapline_build_info Version of trapline.
# TYPE trapline_build_info gauge
trapline_build_info{version="VERSION"} 1
# HELP trapline_process_traced Whether the process is there and traced.
# TYPE trapline_process_traced gauge
trapline_process_traced{pid="42",process="victim"} 1
# HELP trapline_refused_sites Functions that were asked for and are not probed.
# TYPE trapline_refused_sites gauge
trapline_refused_sites{pid="42",process="victim"} 1
# HELP trapline_missed_hits_total Hits that could not be recorded.
# TYPE trapline_missed_hits_total counter
trapline_missed_hits_total{pid="42",process="victim"} 1
# HELP trapline_interrupted_syscalls_total System calls that returned EINTR because of us.
# TYPE trapline_interrupted_syscalls_total counter
trapline_interrupted_syscalls_total{pid="42",process="victim"} 2
# HELP trapline_restarted_timeouts_total Calls with a timeout that were restarted in full.
# TYPE trapline_restarted_timeouts_total counter
trapline_restarted_timeouts_total{pid="42",process="victim"} 3
# HELP trapline_hits_total Hits of a function since attach.
# TYPE trapline_hits_total counter
trapline_hits_total{pid="42",process="victim",function="idle",probe="uprobe:/bin/victim:idle",offset="4096"} 0
trapline_hits_total{pid="42",process="victim",function="libfoo:bar",probe="uprobe:/bin/victim:bar",offset="4096"} 1500
trapline_hits_total{pid="42",process="victim",function="work",probe="uprobe:/bin/victim:work",offset="4096"} 20
"#;
        let wanted = wanted.replace("VERSION", env!("CARGO_PKG_VERSION"));
        assert_eq!(text(&[sample()], Exposition::Prometheus), wanted);
        let open = text(&[sample()], Exposition::OpenMetrics);
        assert!(open.contains("# TYPE trapline_hits counter\ntrapline_hits_total{pid"), "{open}");
        assert!(open.ends_with("\n# EOF\n"), "{open}");
    }

    #[test]
    fn durations_are_a_histogram() {
        let drawn = text(&[timed()], Exposition::OpenMetrics);
        let work =
            r#"pid="42",process="victim",function="work",probe="uprobe:/bin/victim:work",offset="4096""#;
        for line in [
            "# UNIT trapline_call_duration_seconds seconds".to_owned(),
            format!("trapline_call_duration_seconds_bucket{{{work},le=\"0.000000064\"}} 0"),
            format!("trapline_call_duration_seconds_bucket{{{work},le=\"0.000000128\"}} 2"),
            format!("trapline_call_duration_seconds_bucket{{{work},le=\"0.000000512\"}} 3"),
            format!("trapline_call_duration_seconds_bucket{{{work},le=\"17.179869184\"}} 3"),
            format!("trapline_call_duration_seconds_bucket{{{work},le=\"+Inf\"}} 3"),
            format!("trapline_call_duration_seconds_sum{{{work}}} 0.000000511"),
            format!("trapline_call_duration_seconds_count{{{work}}} 3"),
            format!("trapline_calls_in_flight{{{work}}} 1"),
        ] {
            assert!(drawn.lines().any(|one| one == line), "no {line} in\n{drawn}");
        }
    }

    #[test]
    fn a_program_that_runs_again_in_its_process_is_one_series() {
        let drawn =
            text(&[sample(), sample(), ProcessReport { pid: 43, ..sample() }], Exposition::Prometheus);
        let bars: Vec<&str> = drawn.lines().filter(|line| line.contains("\"libfoo:bar\"")).collect();
        assert_eq!(bars.len(), 2, "{bars:?}");
        assert!(bars[0].ends_with(" 3000") && bars[1].ends_with(" 1500"), "{bars:?}");
    }

    #[test]
    fn names_are_escaped() {
        let report = ProcessReport { name: "a\\\"b\nc".to_owned(), ..sample() };
        assert!(text(&[report], Exposition::Prometheus).contains(r#"process="a\\\"b\nc"} 1"#));
    }

    #[test]
    fn the_reader_says_what_it_reads() {
        for (accept, how) in [
            ("", Exposition::Prometheus),
            ("*/*", Exposition::Prometheus),
            ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", Exposition::Prometheus),
            ("application/openmetrics-text;version=1.0.0;q=0.9, text/plain;q=0.5", Exposition::OpenMetrics),
        ] {
            assert_eq!(Exposition::wanted(accept), how, "{accept}");
        }
    }
}
