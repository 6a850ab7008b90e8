//! A row of `breakpoint`, as `perf bench` prints it or as JSON.

use serde::Serialize;

use super::how::{How, Load};
use crate::x86_64::row::{Line, quartiles};

/// A measured row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BreakpointRow {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    bench: &'static str,
    /// `thread`, `enable` or `accounting`.
    case: &'static str,
    how: &'static str,
    /// Whether perf events are open as well.
    events: bool,
    /// CPUs of the machine that the accounting covers.
    cpus: u32,
    breakpoints: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallelism: Option<usize>,
    /// Threads that each parallel thread creates (`thread`), that sleep (`enable`), or that reserve and
    /// release (`accounting`).
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeat: Option<usize>,
    /// Tasks with breakpoints (`accounting`).
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks: Option<usize>,
    #[serde(flatten)]
    figures: BreakpointFigures,
}

/// Figures, or the reason why there are none.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum BreakpointFigures {
    /// Medians of rounds. An operation is a thread with its breakpoints, a switch of the event, or
    /// (`accounting`) one breakpoint reserved and released. The figure per CPU is multiplied by the number of
    /// parallel threads.
    Times {
        total_s: f64,
        usecs_per_op: f64,
        usecs_per_op_cpu: f64,
        low_usecs: f64,
        high_usecs: f64,
        rounds: usize,
    },
    Skipped {
        skipped: String,
    },
}

impl BreakpointFigures {
    /// From the seconds that each round took for `ops` operations.
    pub(crate) fn new(seconds: Result<&[f64], &String>, ops: usize, parallel: usize) -> Self {
        let seconds = match seconds {
            Ok(seconds) => seconds,
            Err(skipped) => return Self::Skipped { skipped: skipped.clone() },
        };
        let usecs = |seconds: f64| seconds * 1e6 / ops as f64;
        let (low, total_s, high) = quartiles(seconds);
        Self::Times {
            total_s,
            usecs_per_op: usecs(total_s),
            usecs_per_op_cpu: usecs(total_s) * parallel as f64,
            low_usecs: usecs(low),
            high_usecs: usecs(high),
            rounds: seconds.len(),
        }
    }
}

impl BreakpointRow {
    fn new(case: &'static str, how: &'static str, cpus: u32, load: Load, figures: BreakpointFigures) -> Self {
        Self {
            kind: "bench",
            schema: 1,
            bench: "breakpoint",
            case,
            how,
            events: false,
            cpus,
            breakpoints: load.breakpoints,
            parallelism: None,
            threads: load.threads,
            active: None,
            repeat: None,
            tasks: None,
            figures,
        }
    }
    pub(super) fn thread(how: How, events: bool, cpus: u32, load: Load, figures: BreakpointFigures) -> Self {
        let row = Self::new("thread", how.name(), cpus, load, figures);
        Self { events, parallelism: Some(load.parallelism), repeat: Some(load.repeat), ..row }
    }
    pub(super) fn enable(cpus: u32, load: Load, figures: BreakpointFigures) -> Self {
        let row = Self::new("enable", "kernel", cpus, Load { threads: load.parallelism, ..load }, figures);
        Self { events: true, active: Some(load.active), repeat: Some(load.repeat), ..row }
    }
    pub(super) fn accounting(
        how: How,
        cpus: u32,
        tasks: usize,
        load: Load,
        figures: BreakpointFigures,
    ) -> Self {
        Self { tasks: Some(tasks), ..Self::new("accounting", how.name(), cpus, load, figures) }
    }
    fn heading(&self) -> String {
        let (how, cpus, breakpoints, threads) = (self.how, self.cpus, self.breakpoints, self.threads);
        let parallelism = self.parallelism.unwrap_or(1);
        let repeat = self.repeat.unwrap_or(0);
        let beneath = if self.events { "over perf events" } else { "no events" };
        match (self.case, self.tasks) {
            ("thread", _) => format!(
                "# Running 'breakpoint/thread' benchmark: {how}, {beneath}\n# Created/joined {repeat} threads with {breakpoints} breakpoints and {parallelism} parallelism"
            ),
            ("enable", _) => format!(
                "# Running 'breakpoint/enable' benchmark:\n# Enabled/disabled breakpoint {repeat} time with {threads} passive and {} active threads",
                self.active.unwrap_or(0)
            ),
            (_, tasks) => format!(
                "accounting {how:7} {threads}T {cpus:3} CPUs {:5} tasks x {breakpoints}",
                tasks.unwrap_or(0)
            ),
        }
    }
}

impl Line for BreakpointRow {
    fn text(&self) -> String {
        let heading = self.heading();
        match &self.figures {
            BreakpointFigures::Skipped { skipped } => format!("{heading}: skipped: {skipped}"),
            BreakpointFigures::Times {
                usecs_per_op,
                usecs_per_op_cpu,
                low_usecs,
                high_usecs,
                rounds,
                ..
            } if self.case == "accounting" => {
                let scale = usecs_per_op_cpu / usecs_per_op * 1e3;
                format!(
                    "{heading:49} {:10.1} ns/op/thread  {:9.3}M/s  ({:.1} .. {:.1}, {rounds} rounds)",
                    usecs_per_op_cpu * 1e3,
                    1.0 / usecs_per_op,
                    low_usecs * scale,
                    high_usecs * scale
                )
            }
            BreakpointFigures::Times {
                total_s,
                usecs_per_op,
                usecs_per_op_cpu,
                low_usecs,
                high_usecs,
                rounds,
            } => {
                let total = format!(" {:>14}: {total_s:.3} [sec]", "Total time");
                let mut text = format!("{heading}\n{total}\n\n {usecs_per_op:14.6} usecs/op");
                if self.case == "thread" {
                    text += &format!("\n {usecs_per_op_cpu:14.6} usecs/op/cpu");
                }
                text + &format!("\n ({low_usecs:.3} .. {high_usecs:.3} usecs/op, {rounds} rounds)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::how::{How, Load};
    use super::{BreakpointFigures, BreakpointRow};
    use crate::x86_64::row::Line as _;

    const LOAD: Load = Load { breakpoints: 4, parallelism: 64, threads: 64, active: 0, repeat: 30 };

    #[test]
    fn a_row_reads_as_perf_bench_prints_it() {
        // The figures of the reference run: 0.080 s for 30 x 64 threads by 64.
        let figures = BreakpointFigures::new(Ok(&[0.0807; 3]), 30 * 64, 64);
        let text = BreakpointRow::thread(How::Ours, true, 256, LOAD, figures).text();
        let expected = "# Running 'breakpoint/thread' benchmark: ours, over perf events\n\
            # Created/joined 30 threads with 4 breakpoints and 64 parallelism\n     Total time: 0.081 [sec]\n\n\
            \u{20}     42.031250 usecs/op\n    2690.000000 usecs/op/cpu\n (42.031 .. 42.031 usecs/op, 3 rounds)";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_row_is_the_documented_object() {
        let why = "no debug registers".to_owned();
        let figures = BreakpointFigures::new(Err(&why), 1, 1);
        let json = serde_json::to_value(BreakpointRow::accounting(How::Rwlock, 2, 10_000, LOAD, figures));
        let expected = serde_json::json!({"type":"bench","schema":1,"bench":"breakpoint","case":"accounting","how":"rwlock",
            "events":false,"cpus":2,"breakpoints":4,"threads":64,"tasks":10_000,"skipped":"no debug registers"});
        assert_eq!(json.unwrap_or_default(), expected);
    }
}
