//! `lat`: the time from entry to return.

use std::time::Duration;

use trapline::{Builder, ProcessReport};

use super::run::{Request, typed};
use super::tables::Tables;
use super::{Failure, Outcome};
use crate::args::command::Lat;
use crate::report::csv::Csv;
use crate::report::format::Format;
use crate::report::html::Html;
use crate::report::{Renderer, json, lat};

/// Runs `lat`.
pub(crate) fn run(args: &Lat) -> Result<Outcome, Failure> {
    let Lat { run, per_function, shape, .. } = args;
    let format = run.sink.format;
    let renderer: Box<dyn Renderer> = match format {
        Format::Json => {
            Box::new(|report: &ProcessReport, _: bool, time: Option<&str>| json::lat(report, time))
        }
        Format::Html => Box::new(Html::new("lat", true, typed())),
        Format::Csv => Box::new(Csv::lat(run.timestamps)),
        _ => Box::new(|report: &ProcessReport, _: bool, _: Option<&str>| {
            lat::text(report, *per_function, shape)
        }),
    };
    let unit = shape.unit.nanos();
    let start = |builder: Builder| {
        let builder = builder.at_least(Duration::from_nanos(shape.min_ns));
        match shape.linear {
            // Steps are drawn only in text. The output for programs is the same without them.
            Some(linear) if format == Format::Text => {
                let nanos = |value: u64| value.saturating_mul(unit);
                builder.steps(nanos(linear.min), nanos(linear.max), nanos(linear.step)).latency()
            }
            _ => builder.latency(),
        }
    };
    let request = Request::new(run).ends(args.ends, true).outermost(args.outermost);
    request.run(start, &mut Tables::new(run, renderer))
}
