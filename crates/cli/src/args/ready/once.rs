//! The verbs that look or act once, checked and converted.
//!
//! In: typed words. Out: [`List`], [`Pids`], [`Demo`], [`Sink`], or what is wrong. Does not: look at any process or file.

use trapline::Target;

use super::error::UsageError;
use super::run::{positive, probes};
use crate::args::command::{Demo, List, Pids};
use crate::args::sink::{LINES, Sink};
use crate::args::typed::{TypedDemo, TypedDoctor, TypedList, TypedPids, TypedReturns};

/// Checks and converts `list`.
pub(super) fn list(typed: TypedList) -> Result<List, UsageError> {
    let target = match (typed.pids, typed.names) {
        (pids, names) if pids.is_empty() && names.is_empty() => Target::Any,
        (pids, names) => Target::Running { pids, names },
    };
    let sink = Sink::new(typed.sink.json, typed.sink.output, typed.sink.quiet, LINES)?;
    Ok(List {
        probes: probes(&typed.probes)?,
        target,
        timed: typed.lat,
        verbose: typed.verbose,
        returns: typed.ret.map(TypedReturns::ready).unwrap_or_default(),
        strict: typed.strict,
        faults_are_fatal: typed.faults_are_fatal,
        kernel_uprobes: typed.kernel_uprobes,
        paged: !typed.pager.no_pager,
        sink,
    })
}

/// Checks and converts `status` and `detach`.
pub(super) fn pids(typed: TypedPids, paged: bool) -> Result<Pids, UsageError> {
    let sink = Sink::new(typed.sink.json, typed.sink.output, typed.sink.quiet, LINES)?;
    Ok(Pids { pids: typed.pids, paged, sink })
}

/// Checks and converts `demo`.
pub(super) fn demo(typed: &TypedDemo) -> Result<Demo, UsageError> {
    Ok(Demo { duration: positive("--duration", &typed.duration)?, keep: typed.keep })
}

/// Checks and converts `doctor`.
pub(super) fn doctor(typed: TypedDoctor) -> Result<Sink, UsageError> {
    Ok(Sink::new(typed.sink.json, typed.sink.output, typed.sink.quiet, LINES)?)
}
