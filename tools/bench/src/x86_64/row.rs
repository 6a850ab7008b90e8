//! A figure as a line of text or of JSON.

use serde::Serialize;

pub(crate) use crate::line::Line;

/// A measured row. Times are nanoseconds per operation and thread.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    /// `uprobe`, `uretprobe`, `lookup` or `churn`.
    pub(crate) bench: &'static str,
    /// The probed function's first instruction; or regions and probes; or what changes address spaces.
    pub(crate) case: String,
    /// `none`, `control`, a tactic, `lock-add`, `exits`, `kernel`, `kernel-return`. In a process that probes
    /// itself with an empty handler: `inside` (general registers saved; for returns, at exits),
    /// `inside-state` (all registers saved), `inside-trap`, `inside-slot` (the return address replaced), and
    /// with handlers of both `inside-session`.
    pub(crate) how: String,
    pub(crate) threads: usize,
    pub(crate) sharing: &'static str,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// `churn`: the speed as a share of the speed without churn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<f64>,
    /// With several threads: a call's cost for each as a multiple of its cost for one thread alone, divided
    /// by the same ratio of the control. Median over rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<f64>,
}

/// Figures, or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Figures {
    /// Median, and the quartiles as its spread.
    Hit { ns: f64, added_ns: f64, mops: f64, low_ns: f64, high_ns: f64, rounds: usize },
    /// This row was not measured.
    Skipped { skipped: String },
}

/// Attach and detach of many sites.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct AttachRow {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    bench: &'static str,
    case: &'static str,
    /// `ours` by jumps, `kernel`, or `inside`: the process probes itself, and a second time in
    /// `inside-again`.
    pub(crate) how: &'static str,
    pub(crate) sites: usize,
    #[serde(flatten)]
    pub(crate) figures: AttachFigures,
}

/// Figures, or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum AttachFigures {
    /// Medians in milliseconds. `stopped_ms` is the longest time that a thread was stopped (ours only).
    Times {
        attach_ms: f64,
        attach_low_ms: f64,
        attach_high_ms: f64,
        detach_ms: f64,
        detach_low_ms: f64,
        detach_high_ms: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        stopped_ms: Option<f64>,
        rounds: usize,
    },
    /// This row was not measured.
    Skipped { skipped: String },
}

impl Row {
    pub(crate) fn new(
        bench: &'static str,
        case: &str,
        how: &str,
        threads: usize,
        own: bool,
        figures: Figures,
    ) -> Self {
        let sharing = if own { "own" } else { "same" };
        Self {
            kind: "bench",
            schema: 1,
            bench,
            case: case.into(),
            how: how.into(),
            threads,
            sharing,
            figures,
            kept: None,
            shared: None,
        }
    }
}

impl Line for Row {
    /// In the form that other benches print: name, then figures.
    fn text(&self) -> String {
        let name = format!("{}-{} {} {}T {}", self.bench, self.case, self.how, self.threads, self.sharing);
        let shared = self.shared.map(|by| format!("  {by:5.3} of alone")).unwrap_or_default();
        match &self.figures {
            Figures::Hit { ns, added_ns, mops, low_ns, high_ns, rounds } => {
                let kept =
                    self.kept.map(|kept| format!("  keeps {:5.1} %", kept * 100.0)).unwrap_or_default();
                format!(
                    "{name:38} {ns:10.2} ns/call  +{added_ns:10.2} ns  {mops:9.3}M/s{kept}{shared}  ({low_ns:.2} .. {high_ns:.2}, {rounds} rounds)"
                )
            }
            Figures::Skipped { skipped } => format!("{name:38} skipped: {skipped}{shared}"),
        }
    }
}

impl AttachRow {
    pub(crate) fn new(how: &'static str, sites: usize, figures: AttachFigures) -> Self {
        Self { kind: "bench", schema: 1, bench: "attach", case: "sites", how, sites, figures }
    }
}

impl Line for AttachRow {
    fn text(&self) -> String {
        let name = format!("attach {} sites {}", self.sites, self.how);
        match &self.figures {
            AttachFigures::Times {
                attach_ms,
                detach_ms,
                attach_low_ms,
                attach_high_ms,
                stopped_ms,
                rounds,
                ..
            } => {
                let stopped = stopped_ms.map(|ms| format!("  stopped {ms:.3} ms")).unwrap_or_default();
                format!(
                    "{name:38} attach {attach_ms:8.2} ms ({attach_low_ms:.2} .. {attach_high_ms:.2})  detach {detach_ms:8.2} ms{stopped}  ({rounds} rounds)"
                )
            }
            AttachFigures::Skipped { skipped } => format!("{name:38} skipped: {skipped}"),
        }
    }
}

/// The cost for each of several threads as a multiple of the cost for one alone, divided by that of the
/// control. Computed for each round; the median of the rounds is returned.
pub(crate) fn shared([one, many]: [&[f64]; 2], [control_one, control_many]: [&[f64]; 2]) -> f64 {
    let by = |(one, many): (&f64, &f64)| many / one;
    let control = control_one.iter().zip(control_many).map(by);
    let rounds: Vec<f64> =
        one.iter().zip(many).map(by).zip(control).map(|(by, control)| by / control).collect();
    quartiles(&rounds).1
}

/// First quartile, median, third quartile. Empty input gives NaN.
pub(crate) fn quartiles(samples: &[f64]) -> (f64, f64, f64) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |q: f64| {
        let place = q * (sorted.len().saturating_sub(1)) as f64;
        let (low, high) = (sorted.get(place.floor() as usize), sorted.get(place.ceil() as usize));
        let (low, high) = (low.copied().unwrap_or(f64::NAN), high.copied().unwrap_or(f64::NAN));
        low + (high - low) * place.fract()
    };
    (at(0.25), at(0.5), at(0.75))
}

#[cfg(test)]
mod tests {
    use super::{Figures, Row, quartiles, shared};

    #[test]
    fn what_threads_pay_is_reported_round_by_round() {
        let control = [&[1.0, 2.0, 1.0][..], &[2.0, 4.0, 1.0][..]];
        assert_eq!(shared([&[1.0, 1.0, 1.0], &[4.0, 2.0, 3.0]], control), 2.0);
    }

    #[test]
    fn quartiles_of_known_samples() {
        assert_eq!(quartiles(&[3.0, 1.0, 2.0, 5.0, 4.0]), (2.0, 3.0, 4.0));
        assert_eq!(quartiles(&[1.0, 2.0]), (1.25, 1.5, 1.75));
        assert!(quartiles(&[]).1.is_nan());
    }

    #[test]
    fn a_row_is_the_documented_object() {
        let figures =
            Figures::Hit { ns: 1.9, added_ns: 0.4, mops: 1050.2, low_ns: 1.8, high_ns: 2.1, rounds: 9 };
        let json =
            serde_json::to_value(Row::new("uprobe", "push", "jump", 2, false, figures)).unwrap_or_default();
        let expected = serde_json::json!({"type":"bench","schema":1,"bench":"uprobe","case":"push","how":"jump","threads":2,
            "sharing":"same","ns":1.9,"added_ns":0.4,"mops":1050.2,"low_ns":1.8,"high_ns":2.1,"rounds":9});
        assert_eq!(json, expected);
        let skipped = Figures::Skipped { skipped: "why".into() };
        let json =
            serde_json::to_value(Row::new("uprobe", "ret", "pun", 1, true, skipped)).unwrap_or_default();
        assert_eq!((json["skipped"].as_str(), json["ns"].as_f64()), (Some("why"), None));
    }
}
