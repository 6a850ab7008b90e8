//! `count` and `lat`, checked and converted: the verbs that report at intervals and can export their figures.
//!
//! In: typed words. Out: [`Count`], [`Lat`], or what is wrong. Does not: trace.

use std::time::Duration;

use trapline::Returns;

use super::error::UsageError;
use super::run::{ends, is_function, run};
use super::units;
use crate::args::command::{Count, HistogramStyle, Lat, Run, TimeUnit};
use crate::args::sink::REPORTS;
use crate::args::typed::{TypedBy, TypedCount, TypedLat};
use crate::args::{otlp, serve};

/// Checks and converts `count`.
pub(super) fn count(typed: TypedCount) -> Result<Count, UsageError> {
    let by = typed.by.map(TypedBy::ready);
    let (serve, otlp) =
        (serve::address(typed.serve.serve.as_deref())?, otlp::collector(typed.serve.otlp.as_deref())?);
    Ok(Count { run: Run { serve, otlp, ..run(&typed.probes, typed.common, REPORTS)? }, by })
}

/// Checks and converts `lat`.
pub(super) fn lat(typed: TypedLat) -> Result<Lat, UsageError> {
    let unit = match (typed.microseconds, typed.milliseconds) {
        (true, _) => TimeUnit::Micros,
        (_, true) => TimeUnit::Millis,
        _ => TimeUnit::Nanos,
    };
    let linear = typed.linear.as_deref().map(units::linear).transpose();
    let min = typed.min.as_deref().map(units::time).transpose();
    let shape = HistogramStyle {
        unit,
        linear: linear.map_err(|why| UsageError::Unit { option: "--linear", why })?,
        min_ns: min.map_err(|why| UsageError::Unit { option: "--min", why })?.map_or(0, nanos),
    };
    let (serve, otlp) =
        (serve::address(typed.serve.serve.as_deref())?, otlp::collector(typed.serve.otlp.as_deref())?);
    let run = Run { serve, otlp, ..run(&typed.probes, typed.common, REPORTS)? };
    if let Some(wrong) = run.probes.iter().find(|probe| !is_function(probe)) {
        return Err(UsageError::NotAFunction(wrong.text.clone()));
    }
    let ends = ends(&typed.ends)?;
    if typed.outermost && ends.returns == Returns::Stack {
        return Err(UsageError::OutermostByStack);
    }
    Ok(Lat { run, per_function: typed.per_function, outermost: typed.outermost, ends, shape })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
