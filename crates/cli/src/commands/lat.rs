//! `lat`: time from entry to return.

use std::time::Duration;

use trapline::{Builder, ProcessReport};

use super::trace::{builder, trace};
use super::{Failure, Outcome};
use crate::args::ready::Lat;
use crate::report::{json, lat};

/// Runs it.
pub(crate) fn run(args: &Lat) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(&builder(&args.run), true, &args.run.sink);
    }
    let render = |report: &ProcessReport, _: bool, time: Option<&str>| {
        if args.run.sink.json {
            json::lat(report, time)
        } else {
            lat::text(report, args.per_function, &args.shape)
        }
    };
    let min = Duration::from_nanos(args.shape.min_ns);
    let unit = args.shape.unit.nanos();
    let start = |builder: Builder| {
        let builder = builder.outermost(args.outermost).at_least(min);
        match args.shape.linear {
            // JSON shows powers of two, whatever is drawn.
            Some(linear) if !args.run.sink.json => {
                let nanos = |value: u64| value.saturating_mul(unit);
                builder.steps(nanos(linear.min), nanos(linear.max), nanos(linear.step)).latency()
            }
            _ => builder.latency(),
        }
    };
    trace(&args.run, start, &render)
}
