//! Which calls of a recording are shown, checked and converted.
//!
//! In: typed words. Out: a [`Selection`], or what is wrong. Does not: know which functions a recording has.

use std::time::Duration;

use super::error::UsageError;
use super::run::{is_function, positive, probes};
use crate::args::command::record::Selection;
use crate::args::typed::TypedSelection;

/// Checks and converts. `depth`: levels, if they are limited.
pub(super) fn selection(typed: &TypedSelection, depth: Option<usize>) -> Result<Selection, UsageError> {
    let functions = |option: &'static str, texts: &[String]| {
        let specs = probes(texts)?;
        match specs.iter().find(|spec| !is_function(spec)) {
            Some(wrong) => Err(UsageError::NoFunction { option, text: wrong.text.clone() }),
            None => Ok(specs),
        }
    };
    let least = typed.time_filter.as_deref().map(|text| positive("--time-filter", text)).transpose()?;
    Ok(Selection {
        only: functions("--filter", &typed.filter)?,
        without: functions("--notrace", &typed.notrace)?,
        callers_of: functions("--caller", &typed.caller)?,
        depth: depth.unwrap_or(usize::MAX),
        least: least.unwrap_or(Duration::ZERO),
        tids: typed.tids.clone(),
    })
}
