//! `count`: hits of each function.

use trapline::{Builder, ProcessReport};

use super::trace::{builder, trace};
use super::{Failure, Outcome};
use crate::args::ready::Count;
use crate::report::{count, json};

/// Runs it.
pub(crate) fn run(args: &Count) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&builder(&args.run), false, &args.run.sink);
    }
    let by = args.by;
    let render = |report: &ProcessReport, live: bool, time: Option<&str>| {
        if args.run.sink.json { json::count(report, by, time) } else { count::text(report, by, live) }
    };
    trace(&args.run, |builder: Builder| builder.by(by).count(), &render)
}
