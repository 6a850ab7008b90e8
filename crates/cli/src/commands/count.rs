//! `count`: hits of each function.

use trapline::ProcessReport;

use super::run::{Request, typed};
use super::tables::Tables;
use super::{Failure, Outcome};
use crate::args::command::Count;
use crate::report::csv::Csv;
use crate::report::format::Format;
use crate::report::html::Html;
use crate::report::{Renderer, count, json};

/// Runs `count`.
pub(crate) fn run(args: &Count) -> Result<Outcome, Failure> {
    let Count { run, by } = args;
    let by = *by;
    let renderer: Box<dyn Renderer> = match run.sink.format {
        Format::Json => {
            Box::new(move |report: &ProcessReport, _: bool, time: Option<&str>| json::count(report, by, time))
        }
        Format::Html => Box::new(Html::new("count", false, typed())),
        Format::Csv => Box::new(Csv::count(by, run.timestamps)),
        _ => {
            Box::new(move |report: &ProcessReport, live: bool, _: Option<&str>| count::text(report, by, live))
        }
    };
    Request::new(run).run(|builder| builder.by(by).count(), &mut Tables::new(run, renderer))
}
