//! `count`: hits of each function.

use trapline::{Builder, ProcessReport};

use super::intervals::{builder, report_at_intervals, typed};
use super::{Failure, Outcome};
use crate::args::command::Count;
use crate::report::csv::Csv;
use crate::report::format::Format;
use crate::report::html::Html;
use crate::report::{Renderer, count, json};

/// Runs `count`.
pub(crate) fn run(args: &Count) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&builder(&args.run), false, &args.run.sink);
    }
    let (by, sink) = (args.by, &args.run.sink);
    let mut renderer: Box<dyn Renderer> = match sink.format {
        Format::Json => {
            Box::new(move |report: &ProcessReport, _: bool, time: Option<&str>| json::count(report, by, time))
        }
        Format::Html => Box::new(Html::new("count", false, typed())),
        Format::Csv => Box::new(Csv::count(by, args.run.timestamps)),
        _ => {
            Box::new(move |report: &ProcessReport, live: bool, _: Option<&str>| count::text(report, by, live))
        }
    };
    report_at_intervals(&args.run, |builder: Builder| builder.by(by).count(), &mut *renderer)
}
