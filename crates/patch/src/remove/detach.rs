//! Takes patches out again, of a process and of its children: for the session that made them, and for a later
//! one.
//!
//! In: a process, and the segments that it maps. Out: text, actions and semaphores as they were, in one batch
//! for each process (`clean`); a report of what was left alone. All of it may be repeated (SAFE-3, SAFE-4).
//! Does not: wait for a blocked call, or read counters.

use trapline_record::control::State;
use trapline_tracee::{FileId, Process, users_of};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::memory::find::{check_free, find_segments, segment_status};
use crate::memory::segment::Segment;
use crate::remove::clean::clean;
use crate::report::{DetachReport, Untouched};
use crate::request::Options;
use crate::space::change::Direction;

/// Takes out all patches, of the process and of its children that still map the segments.
pub(crate) fn detach(batches: &mut Batches, process: &Process, options: &Options) -> DetachReport {
    let own = batches.memfds();
    let mut report = DetachReport::default();
    if own.is_empty() {
        return report;
    }
    // WAIT-3
    batches.segments.iter().for_each(Segment::release);
    let way = if batches.is_unfinished { Direction::Recover } else { Direction::Remove };
    match clean(process, &own, options, way) {
        Ok(restored) => report.restored.push(restored),
        Err(error) if error.is_gone() => report.gone = true,
        Err(why) => report.untouched.push(Untouched { pid: process.pid(), why }),
    }
    children(process.pid(), &own, options, &mut report);
    if report.untouched.is_empty() {
        batches.guards.clear();
        batches.installed = None;
    }
    report
}

/// Cleans up what dead tracers left in a process and in its children, from its memory alone.
///
/// # Errors
/// If a living tracer is at work there, or the process cannot be traced. Nothing is changed then.
pub fn recover(process: &Process, options: &Options) -> Result<DetachReport, PatchError> {
    let found = find_segments(process)?;
    check_free(process.pid(), &found, &[], true)?;
    // A child's text may hold patches that its parent no longer has: the words are shared, the text is not.
    let mut files = Vec::new();
    for segment in &found {
        if segment.state() != Some(State::Removed) || segment_status(process, segment)?.in_place > 0 {
            files.push(segment.memfd);
        }
    }
    let mut report = DetachReport::default();
    if files.is_empty() {
        return Ok(report);
    }
    report.restored.push(clean(process, &files, options, Direction::Recover)?);
    children(process.pid(), &files, options, &mut report);
    Ok(report)
}

/// Cleans up other processes that map the same memory: children forked while patches were in place. They may
/// fork meanwhile, so the search is repeated until it finds no new one.
fn children(pid: u32, files: &[FileId], options: &Options, report: &mut DetachReport) {
    let mut seen = vec![pid];
    loop {
        let mut users: Vec<u32> = files.iter().flat_map(|&file| users_of(file)).collect();
        users.sort_unstable();
        users.dedup();
        users.retain(|user| !seen.contains(user));
        if users.is_empty() {
            return;
        }
        for user in users {
            seen.push(user);
            match Process::look_into(user)
                .map_err(PatchError::from)
                .and_then(|p| clean(&p, files, options, Direction::Recover))
            {
                Ok(restored) => report.restored.push(restored),
                Err(error) if error.is_gone() => {}
                Err(why) => report.untouched.push(Untouched { pid: user, why }),
            }
        }
    }
}
