//! `trace`, checked and converted: of processes, or of a recording.
//!
//! In: typed words, debug information. Out: [`Calls`], [`Recording`], or what is wrong. Does not: trace.

use std::path::PathBuf;

use trapline::filter::Filter;

use super::error::UsageError;
use super::fields::Fields;
use super::filters;
use super::prototype::{Look, complete, refuse_kept, split};
use super::run::ends;
use crate::args::command::{Calls, Command, Recording, Run};
use crate::args::sink::{CALLS, READ, Sink};
use crate::args::typed::TypedTrace;
use crate::report::format::Format;

/// Checks and converts.
pub(super) fn trace(mut typed: TypedTrace, look: Look<'_>) -> Result<Command, UsageError> {
    match typed.from.take() {
        Some(file) => recording(file, typed).map(Command::Recording),
        None => calls(typed, look).map(Command::Calls),
    }
}

fn recording(file: PathBuf, typed: TypedTrace) -> Result<Recording, UsageError> {
    let TypedTrace { filter, comms, max, common, .. } = typed;
    let sink = Sink::new(common.json, common.output, common.quiet, READ)?;
    Ok(Recording { file, sink, filter_options: filters::options(filter, comms)?, max })
}

fn calls(typed: TypedTrace, look: Look<'_>) -> Result<Calls, UsageError> {
    let (mut run, signatures) = split(&typed.probes, typed.common, CALLS, look)?;
    let probes = complete(&mut run, signatures, look)?;
    let returns = !typed.entry_only;
    if !returns {
        refuse_kept(&probes)?;
    }
    let filter_options = filters::options(typed.filter, typed.comms)?;
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::of(one.as_ref())).collect();
    let filters = filters::filters(&probes, returns, &filter_options, &fields)?;
    drop(fields);
    if run.sink.format == Format::Saved {
        kept_as_they_are(&run, typed.max, &filters)?;
    }
    let ends = ends(&typed.ends)?;
    Ok(Calls { run, probes, filters, returns, ends, max: typed.max })
}

/// Refuses options that a recording cannot have. It holds what the target recorded, and calls are paired when
/// it is read.
fn kept_as_they_are(run: &Run, max: Option<u64>, filters: &[Filter]) -> Result<(), UsageError> {
    let wrong = if filters.iter().any(Filter::is_late) {
        "-o FILE.trapline records what the target decides; ask of ret, dur and --comm when it is read: trapline trace --from FILE"
    } else if max.is_some() {
        "--max counts calls, which are put together when FILE.trapline is read: trapline trace --from FILE --max N"
    } else if run.timestamps {
        "-T is the time of printing, and nothing is printed into FILE.trapline"
    } else {
        return Ok(());
    };
    Err(UsageError::Conflict(wrong))
}
