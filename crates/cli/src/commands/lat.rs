//! `lat`: the time from entry to return.

use std::time::Duration;

use trapline::{Builder, ProcessReport};

use super::intervals::{builder, report_at_intervals, typed};
use super::{Failure, Outcome};
use crate::args::command::Lat;
use crate::report::csv::Csv;
use crate::report::format::Format;
use crate::report::html::Html;
use crate::report::{Renderer, json, lat};

/// Runs `lat`.
pub(crate) fn run(args: &Lat) -> Result<Outcome, Failure> {
    if args.run.dry_run {
        return super::list::show(
            &args.ends.of(builder(&args.run)).outermost(args.outermost),
            true,
            &args.run.sink,
        );
    }
    let (per_function, shape) = (args.per_function, args.shape);
    let format = args.run.sink.format;
    let mut renderer: Box<dyn Renderer> = match format {
        Format::Json => {
            Box::new(|report: &ProcessReport, _: bool, time: Option<&str>| json::lat(report, time))
        }
        Format::Html => Box::new(Html::new("lat", true, typed())),
        Format::Csv => Box::new(Csv::lat(args.run.timestamps)),
        _ => Box::new(move |report: &ProcessReport, _: bool, _: Option<&str>| {
            lat::text(report, per_function, &shape)
        }),
    };
    let min = Duration::from_nanos(args.shape.min_ns);
    let unit = args.shape.unit.nanos();
    let start = |builder: Builder| {
        let builder = args.ends.of(builder).outermost(args.outermost).at_least(min);
        match args.shape.linear {
            // Steps are drawn only in text. The output for programs is the same without them.
            Some(linear) if format == Format::Text => {
                let nanos = |value: u64| value.saturating_mul(unit);
                builder.steps(nanos(linear.min), nanos(linear.max), nanos(linear.step)).latency()
            }
            _ => builder.latency(),
        }
    };
    report_at_intervals(&args.run, start, &mut *renderer)
}
