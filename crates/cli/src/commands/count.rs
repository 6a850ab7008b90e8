//! `count`: hits of each function.

use trapline::{Builder, ProcessReport};

use super::trace::{builder, trace};
use super::{Failure, Outcome};
use crate::args::ready::{By, Count};
use crate::report::{count, json};

/// Runs it.
pub(crate) fn run(args: &Count) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&builder(&args.run), false, &args.run.sink);
    }
    let by = args.by;
    if let Some(By::Tid | By::Comm) = by {
        return Err(trapline::Error::Missing {
            what: "--by tid and --by comm",
            why: "stubs count by CPU; use --by cpu, or one trapline for each process",
        }
        .into());
    }
    let render = |report: &ProcessReport, live: bool, time: Option<&str>| {
        if args.run.sink.json { json::count(report, by, time) } else { count::text(report, by, live) }
    };
    trace(&args.run, |builder: Builder| builder.by_cpu(by == Some(By::Cpu)).count(), &render)
}
