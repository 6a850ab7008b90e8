//! A batch as far as it goes without changing anything: what [`Attached::add`](crate::Attached::add) would
//! place, and what it would refuse.
//!
//! In: a process and a request. Out: a report like that of an attach, with nothing done. What only a stopped
//! thread shows (its rseq area, whether it stands inside a window) is assumed to be as usual; no tactic
//! depends on it. What earlier sessions left mapped counts as room: an attach that finds none unmaps it, if
//! no thread is in it.
//! Does not: seize, stop, map or write.

use std::time::{Duration, Instant};

use trapline_plan::ProcessTraits;
use trapline_tracee::{Process, ThreadStatus};

use crate::batches::Before;
use crate::error::PatchError;
use crate::install::prepare::prepare;
use crate::install::prepared::PreparedSite;
use crate::install::survey::Survey;
use crate::memory::find::left_behind;
use crate::report::AttachReport;
use crate::request::Request;
use crate::signals::SIGTRAP;

/// What an attach would do now.
///
/// # Errors
/// If the process is gone, or the batch as a whole could not be made.
pub fn rehearse(process: &Process, request: &Request<'_>) -> Result<AttachReport, PatchError> {
    let start = Instant::now();
    let mut survey = Survey::new(process, request.go, &request.options, &mut || {
        std::thread::sleep(Duration::from_micros(200));
        Ok(())
    })?;
    survey.still |= ThreadStatus::has(process.status()?.caught, SIGTRAP);
    survey.traits.rseq = ProcessTraits::usual(survey.traits.cpus).rseq;
    let mut report =
        AttachReport { no_traps: survey.no_traps, stopped_all: survey.still, ..AttachReport::default() };
    let left: Vec<_> = left_behind(process, &[])?.into_iter().flat_map(|segment| segment.mappings).collect();
    let is_left = |start| left.iter().any(|mapping| mapping.start == start);
    survey.space.occupied.retain(|&(start, _)| !is_left(start));
    let prepared = prepare(process, request, &mut survey, Before::default(), &mut report)?;
    report.placed = prepared.sites.iter().map(PreparedSite::placed).collect();
    report.timings.total = start.elapsed();
    Ok(report)
}
