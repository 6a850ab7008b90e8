//! `hist`: how often an argument, a returned value, or what is computed from them, had which value.
//!
//! Invariants: END-1, as for `count`.

use std::time::{Duration, Instant};

use trapline::aggregation::Tallied;
use trapline::system::time_of_day;
use trapline::{Builder, By, ProcessReport, Session};

use super::reader_aggregation::ReaderAggregation;
use super::run_output::{self, RunOutput};
use super::{Failure, Outcome, intervals};
use crate::args::aggregation::Aggregation;
use crate::args::hist::Hist;
use crate::output::{OutputError, print_line};
use crate::report::format::Format;
use crate::report::hist::{self, Sums};

/// How often rings are emptied.
const ROUND: Duration = Duration::from_millis(2);

/// Runs `hist`.
pub(crate) fn run(args: &Hist) -> Result<Outcome, Failure> {
    let run = &args.run;
    if run.dry_run {
        return super::list::show(
            &args.ends.of(intervals::builder(run)),
            args.aggregation.waits(),
            &run.sink,
        );
    }
    let start = |builder: Builder| {
        let builder = args.ends.of(builder).by(args.by).filters(args.filters.clone());
        match &args.aggregation {
            Aggregation::InTarget { exits } => builder.tally(*exits),
            Aggregation::InReader { returns, texts, ended, floats, .. } => {
                let builder = builder.ended_texts(ended.clone());
                builder.texts(texts.clone()).floats(floats.clone()).record(6, *returns)
            }
        }
    };
    let (mut run_output, mut session) = run_output::begin(run, start)?;
    if let (true, Aggregation::InReader { .. }) = (run_output.talkative, &args.aggregation) {
        print_line(
            "trapline: each call is recorded, and added up here (docs/guide/hist.md says what the target adds up)",
        );
    }
    let mut table = Table { args, reader_aggregation: ReaderAggregation::new(args) };
    let followed = table.follow(&mut session, &mut run_output);
    let finished = session.detach();
    table.reader_aggregation.add(&finished.calls, |call| finished.names.get(&(call.pid, call.tid)).cloned());
    let reported = followed.and_then(|()| {
        let tallied = finished.tallies.clone();
        run_output.output.print(&table.render(&finished.reports, tallied, false))?;
        run_output.summary(&finished)
    });
    run_output.end(finished, reported)
}

/// What is shown, and the aggregation in the reader.
struct Table<'a> {
    args: &'a Hist,
    reader_aggregation: ReaderAggregation<'a>,
}

impl Table<'_> {
    /// Prints tables until something ends the run.
    fn follow(
        &mut self,
        session: &mut Session,
        RunOutput { interrupts, output, .. }: &mut RunOutput,
    ) -> Result<(), OutputError> {
        let run = &self.args.run;
        let end = run.duration.map(|duration| Instant::now() + duration);
        let mut next = run.interval.map(|interval| Instant::now() + interval);
        // Where threads' names matter, new names are looked for as often as records are read.
        let by_name = self.args.by == Some(By::ThreadName) || self.args.named;
        let tick = match self.args.aggregation {
            Aggregation::InTarget { .. } if !run.follow && !by_name => intervals::TICK,
            _ => ROUND,
        };
        loop {
            if let Aggregation::InReader { .. } = self.args.aggregation {
                let calls = session.calls();
                self.reader_aggregation.add(&calls, |call| session.thread_name(call));
            }
            if let (Some(due), Some(interval)) = (next, run.interval)
                && Instant::now() >= due
            {
                next = Some(Instant::now() + interval);
                // Reading the tables updates names, and the report that follows uses them for what was left
                // out.
                let tallied = session.tallies();
                let reports = session.report();
                output.print(&self.render(&reports, tallied, true))?;
            }
            let now = Instant::now();
            let left = [end, next].into_iter().flatten().min().map(|at| at.saturating_duration_since(now));
            let wait = left.unwrap_or(tick).clamp(Duration::from_millis(1), tick);
            if end.is_some_and(|end| now >= end)
                || session.wait(interrupts, wait).is_some()
                || !session.poll()
            {
                return Ok(());
            }
        }
    }
    fn render(&self, reports: &[ProcessReport], tallied: Vec<Tallied>, live: bool) -> String {
        let (args, time) = (self.args, self.args.run.timestamps.then(time_of_day));
        let sums = match args.aggregation {
            Aggregation::InTarget { .. } => Sums::of_target(args, tallied),
            Aggregation::InReader { .. } => self.reader_aggregation.sums(),
        };
        let one = |report: &ProcessReport| match args.run.sink.format {
            Format::Json => hist::object(args, &sums, report, time.as_deref()),
            _ => {
                let head = time.as_ref().map_or_else(String::new, |time| format!("\n{time}"));
                let gap = if live || time.is_some() { "\n" } else { "" };
                head + gap + &hist::text(args, &sums, report)
            }
        };
        reports.iter().map(one).collect()
    }
}
