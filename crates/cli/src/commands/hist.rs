//! `hist`: how often an argument, a returned value, or what is computed from them, had which value.

use trapline::aggregation::Tallied;
use trapline::system::time_of_day;
use trapline::{Builder, By, Finished, ProcessReport, Session};

use super::reader_aggregation::ReaderAggregation;
use super::run::Request;
use super::run::follow::Reporter;
use super::run::schedule::Event;
use super::{Failure, Outcome};
use crate::args::aggregation::Aggregation;
use crate::args::hist::Hist;
use crate::output::{Output, OutputError};
use crate::report::format::Format;
use crate::report::hist::{self, Sums};

/// The notice where the target cannot aggregate.
const BY_READER: &str =
    "each call is recorded, and added up here (docs/guide/hist.md says what the target adds up)";

/// Runs `hist`.
pub(crate) fn run(args: &Hist) -> Result<Outcome, Failure> {
    let start = |builder: Builder| {
        let builder = builder.by(args.by).filters(args.filters.clone());
        match &args.aggregation {
            Aggregation::InTarget { exits } => builder.tally(*exits),
            Aggregation::InReader { arguments, returns, texts, ended, floats, .. } => {
                let builder = builder.ended_texts(ended.clone());
                builder.texts(texts.clone()).floats(floats.clone()).record(*arguments, *returns)
            }
        }
    };
    let by_reader = matches!(args.aggregation, Aggregation::InReader { .. });
    // Where threads' names matter, new names are looked for as often as records are read.
    let by_name = args.by == Some(By::ThreadName) || args.named;
    let request = Request::new(&args.run).ends(args.ends, args.aggregation.waits());
    let request = request.often(by_reader || by_name).notice(by_reader.then_some(BY_READER));
    request.run(start, &mut HistTable { args, reader_aggregation: ReaderAggregation::new(args) })
}

/// What is shown, and the aggregation in the reader.
struct HistTable<'a> {
    args: &'a Hist,
    reader_aggregation: ReaderAggregation<'a>,
}

impl Reporter for HistTable<'_> {
    fn take(&mut self, session: &mut Session, _: &mut Output) -> Result<Event, OutputError> {
        if let Aggregation::InReader { .. } = self.args.aggregation {
            let calls = session.calls();
            self.reader_aggregation.add(&calls, |call| session.thread_name(call));
        }
        Ok(Event::Quiet)
    }
    fn report(&mut self, session: &mut Session, output: &mut Output) -> Result<(), OutputError> {
        // Reading the tables updates names, and the report that follows uses them for what was left out.
        let tallied = session.tallies();
        output.print(&self.render(&session.report(), tallied, true))
    }
    fn close(&mut self, finished: &Finished, output: &mut Output) -> Result<(), OutputError> {
        let name = |call: &trapline::Call| finished.names.get(&(call.pid, call.tid)).cloned();
        self.reader_aggregation.add(&finished.calls, name);
        output.print(&self.render(&finished.reports, finished.tallies.clone(), false))
    }
}

impl HistTable<'_> {
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
        let totals = if reports.len() > 1 { hist::totals(args, &sums, time.as_deref()) } else { None };
        reports.iter().map(one).chain(totals).collect()
    }
}
