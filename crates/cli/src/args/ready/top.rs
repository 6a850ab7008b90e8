//! `top`, checked and converted.
//!
//! In: typed words. Out: a [`Top`], or what is wrong. Does not: trace, or draw.

use std::time::Duration;

use trapline::ProbeSpec;

use super::error::UsageError;
use super::run::{is_function, run};
use crate::args::sink::TABLES;
use crate::args::top::Top;
use crate::args::typed::TypedTop;

/// The time between two samples, if none is typed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Checks and converts.
pub(super) fn top(typed: TypedTop) -> Result<Top, UsageError> {
    let mut run = run(&typed.probes, typed.common, TABLES)?;
    run.interval = run.interval.or(Some(INTERVAL));
    let wrong = |probe: &&ProbeSpec| typed.lat && !is_function(probe);
    if let Some(probe) = run.probes.iter().find(wrong) {
        return Err(UsageError::NotAFunction(probe.text.clone()));
    }
    if typed.sort.is_timed() && !typed.lat {
        return Err(UsageError::Conflict("--sort p50 and p99 are for timed calls: add --lat"));
    }
    Ok(Top { run, timed: typed.lat, sort: typed.sort })
}
