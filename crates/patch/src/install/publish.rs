//! Writes sites: steps I8 to I10 of `protocol`.
//!
//! In: what was prepared, mapped and filled. Out: what is in place, added to the report.
//! Invariants: PATCH-3, PATCH-9; children forked meanwhile hold the same bytes in the end.
//! Does not: know how one site is written (see `write`).

use trapline_plan::PatchRole;
use trapline_record::journal::Entry;
use trapline_tracee::{Batch, Event, Process, RemoteOptions};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::compare::refuse;
use crate::install::delivery::give_up;
use crate::install::prepared::{Prepared, PreparedSite};
use crate::install::survey::Survey;
use crate::memory::semaphore;
use crate::native::traps::any_staged;
use crate::report::AttachReport;
use crate::signals::{SIGTRAP, bit};
use crate::space::SpaceError;
use crate::space::change::{Direction, Outcome};
use crate::space::remote::{Running, Seizure, Still};
use crate::space::write::change;
use crate::threads::quiesce::quiesce;
use crate::threads::still::{move_blocked_out, move_out, saved_contexts};
use crate::why::{NoTraps, Why};

/// Writes all sites of the newest segment, raises its semaphores, and brings held children up to date.
pub(crate) fn publish(
    batches: &mut Batches,
    batch: &mut Batch<'_>,
    prepared: Prepared,
    survey: &Survey,
    remote: &RemoteOptions,
    report: &mut AttachReport,
) -> Result<(), PatchError> {
    batches.is_unfinished = true;
    let Prepared { sites, semaphores, .. } = prepared;
    let (sites, outcomes) = if survey.still {
        write_stopped(batches, batch, sites, survey.no_traps, report)?
    } else {
        write_running(batches, batch, sites, remote)?
    };
    batches.is_unfinished = false;
    batches.held.add(sites.iter().map(|site| site.patch));
    let handles = |site: &PreparedSite| site.patch.role == PatchRole::Handler;
    if sites.iter().zip(&outcomes).any(|(site, outcome)| handles(site) && !outcome.is_in_place()) {
        give_up(batches);
    }
    report.semaphores = raise(batches, batch.process(), &semaphores, sites_in_journal(batches));
    report.children += children(batches, batch, &entries_of(&sites))?;
    settle(&sites, &outcomes, report);
    Ok(())
}

/// Step I8 with all threads stopped. Without traps, sites into which a saved context points are refused (PATCH-9).
fn write_stopped(
    batches: &Batches,
    batch: &mut Batch<'_>,
    mut sites: Vec<PreparedSite>,
    no_traps: Option<NoTraps>,
    report: &mut AttachReport,
) -> Result<(Vec<PreparedSite>, Vec<Outcome>), PatchError> {
    let process = batch.process();
    let guard = |addr| batches.resume(addr);
    let mut stopped = batch.stop_all(&guard)?;
    move_out(process, &mut stopped, &guard)?;
    if let Some(because) = no_traps {
        // A head is not inside a window, though many pointers name it.
        let is_head = |at: u64| sites.binary_search_by_key(&at, |site| site.patch.addr.0).is_ok();
        let own = batches.segments.last().map_or(&[][..], |segment| &segment.guards);
        let inside: Vec<_> = own.iter().copied().filter(|guard| !is_head(guard.0)).collect();
        let caught = saved_contexts(process, &inside)?;
        let bad = within(&sites, &caught);
        let bad = bad.map(|(index, addr)| (index, Why::SavedContext { addr, because })).collect();
        refuse(&mut sites, bad, report);
    }
    let mut outcomes = Vec::new();
    let result = change(&mut Still { process }, &entries_of(&sites), Direction::Publish, &mut outcomes);
    stopped.resume()?;
    result.map_err(SpaceError::into_error)?;
    Ok((sites, outcomes))
}

/// Step I8 while threads run.
fn write_running(
    batches: &Batches,
    batch: &mut Batch<'_>,
    sites: Vec<PreparedSite>,
    remote: &RemoteOptions,
) -> Result<(Vec<PreparedSite>, Vec<Outcome>), PatchError> {
    let guard = |addr| batches.resume(addr);
    let entries = entries_of(&sites);
    // An earlier batch may have released threads behind their traps' stops (PATCH-13).
    if batches.segments.len() > 1 && any_staged(&entries) {
        quiesce(batch, &guard)?;
    }
    let mut outcomes = Vec::new();
    let mut space = Running { batch, seizure: Seizure { guard: &guard, remote } };
    change(&mut space, &entries, Direction::Publish, &mut outcomes).map_err(SpaceError::into_error)?;
    move_blocked_out(batch, &guard)?;
    Ok((sites, outcomes))
}

fn entries_of(sites: &[PreparedSite]) -> Vec<Entry> {
    sites.iter().map(PreparedSite::entry).collect()
}

/// Sites with an address of `caught` in their window.
fn within<'a>(
    sites: &'a [PreparedSite],
    caught: &'a [u64],
) -> impl Iterator<Item = (usize, trapline_record::RemoteAddr)> + 'a {
    caught.iter().filter_map(|&at| {
        let after = sites.partition_point(|s| s.patch.addr.0 <= at);
        let index = after.checked_sub(1)?;
        let patch = &sites[index].patch;
        (at - patch.addr.0 < u64::from(patch.len)).then_some((index, trapline_record::RemoteAddr(at)))
    })
}

/// Puts into the report what was written, and what was found changed at the moment of writing.
pub(crate) fn settle(sites: &[PreparedSite], outcomes: &[Outcome], report: &mut AttachReport) {
    for (site, outcome) in sites.iter().zip(outcomes) {
        let (addr, len) = (site.patch.addr, usize::from(site.patch.len));
        match outcome {
            Outcome::Done | Outcome::Already | Outcome::KeptBreakpoint => report.placed.push(site.placed()),
            Outcome::Unreachable => report.refused.push(site.refused(Why::NotMapped { addr })),
            Outcome::Differs { found } => {
                let (file, found) = (site.patch.old[..len].to_vec(), found[..len].to_vec());
                report.refused.push(site.refused(Why::Differs { addr, file, found }));
            }
        }
    }
}

/// Index in the journal of the first semaphore.
pub(crate) fn sites_in_journal(batches: &Batches) -> usize {
    use trapline_record::journal::EntryKind;
    let entries = batches.segments.last().map_or(&[][..], |s| &s.entries);
    entries.iter().position(|e| e.kind == EntryKind::Semaphore).unwrap_or(entries.len())
}

pub(crate) fn raise(batches: &Batches, process: &Process, semaphores: &[Entry], first: usize) -> u32 {
    let Some(segment) = batches.segments.last() else { return 0 };
    let mut raised = 0;
    for (n, entry) in semaphores.iter().enumerate() {
        if let Ok(marked) = semaphore::raise(process, entry) {
            segment.journal().put((first + n) as u64, &marked);
            raised += 1;
        }
    }
    raised
}

/// Step I10: children born since the seizure have a copy of the text as it was then. They are held. They get
/// what is missing, unless they were born before the memory that it leads to was mapped (PATCH-4).
pub(crate) fn children(
    batches: &Batches,
    batch: &mut Batch<'_>,
    entries: &[Entry],
) -> Result<u32, PatchError> {
    let guard = |addr| batches.resume(addr);
    batch.serve(&guard)?;
    let mut patched = 0;
    for event in batch.events() {
        let Event::Forked { child, shares_memory: false, .. } = event else { continue };
        if let Some(process) = Process::open(child).ok().filter(|p| is_furnished(batches, p)) {
            let mut outcomes = Vec::new();
            // If a child died, the batch has not failed.
            if change(&mut Still { process: &process }, entries, Direction::Complete, &mut outcomes).is_ok() {
                patched += 1;
            }
        }
        // Nor has it if a child is gone before it is released.
        drop(batch.release(child, false));
    }
    Ok(patched)
}

/// Whether a child has everything that the newest segment's patches lead to: its last mapping, and the
/// handler.
fn is_furnished(batches: &Batches, child: &Process) -> bool {
    let Some(segment) = batches.segments.last() else { return false };
    let last = segment.regions.last().map(|r| r.region.addr);
    let mapped = child
        .maps()
        .is_ok_and(|maps| maps.iter().any(|m| m.file == Some(segment.memfd()) && Some(m.start) == last));
    mapped
        && (batches.installed.is_none()
            || child.status().is_ok_and(|status| status.caught & bit(SIGTRAP) != 0))
}
