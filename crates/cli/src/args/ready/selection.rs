//! Which calls of a recording are shown, checked and converted.
//!
//! In: typed words. Out: a [`Selection`], or what is wrong. Does not: know which functions a recording has.

use std::time::Duration;

use trapline::ProbeSpec;

use super::error::UsageError;
use super::run::{is_function, positive, probes};
use super::trigger::triggers;
use super::units;
use crate::args::command::record::Selection;
use crate::args::typed::TypedSelection;

/// Functions that an option names.
pub(super) fn functions(option: &'static str, texts: &[String]) -> Result<Vec<ProbeSpec>, UsageError> {
    let specs = probes(texts)?;
    match specs.iter().find(|spec| !is_function(spec)) {
        Some(wrong) => Err(UsageError::NoFunction { option, text: wrong.text.clone() }),
        None => Ok(specs),
    }
}

/// Checks and converts. `depth`: levels, if they are limited.
pub(super) fn selection(typed: &TypedSelection, depth: Option<usize>) -> Result<Selection, UsageError> {
    let least = typed.time_filter.as_deref().map(|text| positive("--time-filter", text)).transpose()?;
    let time = |option: &'static str, text: &Option<String>| {
        let time = text.as_deref().map(units::time).transpose();
        time.map_err(|why| UsageError::Unit { option, why })
    };
    let since = time("--since", &typed.since)?.unwrap_or(Duration::ZERO);
    let until = time("--until", &typed.until)?;
    if until.is_some_and(|until| until < since) {
        return Err(UsageError::Conflict("--until is a time before --since"));
    }
    let triggers = triggers(&typed.trigger)?;
    Ok(Selection {
        only: [functions("--filter", &typed.filter)?, triggers.only].concat(),
        without: [functions("--notrace", &typed.notrace)?, triggers.without].concat(),
        callers_of: functions("--caller", &typed.caller)?,
        depth: depth.unwrap_or(usize::MAX),
        least: least.unwrap_or(Duration::ZERO),
        triggers: triggers.all,
        is_alone: typed.all_calls,
        tids: typed.tids.clone(),
        since,
        until,
    })
}
