//! Takes out the patches of some probes, and leaves the others in place.
//!
//! In: a process with patches, probes. Out: their sites hold the file's bytes, here and in forked children; code, counters and
//! journal stay as they are, so `recover` and the removal of the rest find each site as one that was restored. Invariant: PATCH-16
//! all sites of a probe go together, while all threads are stopped: no call begins with an entry and has no exit but those that
//! run meanwhile.
//!
//! A thread that is stopped in a stub goes on there, and may write one more record. A call that runs meanwhile has no exit. Both
//! are the caller's to know: it has a tick behind the last site's change.
//!
//! Does not: choose probes.

use std::collections::HashSet;

use trapline_record::journal::{Entry, EntryKind};
use trapline_tracee::{Batch, BatchOptions, Process, users_of};

use crate::batches::Batches;
use crate::error::PatchError;
use crate::memory::segment::resume;
use crate::remove::hold::Closed;
use crate::space::SpaceError;
use crate::space::change::{Direction, Outcome};
use crate::space::remote::Still;
use crate::space::write::change;
use crate::threads::still::move_out;

/// Takes out the patches of probes: the index of the segment, and the probe's number in it.
pub(crate) fn take_out_probes(
    batches: &mut Batches,
    process: &Process,
    probes: &HashSet<(usize, u32)>,
) -> Result<Closed, PatchError> {
    let (mut entries, mut found) = (Vec::new(), HashSet::new());
    for (index, segment) in batches.segments.iter().enumerate() {
        for entry in segment.entries.iter().filter(|entry| entry.kind != EntryKind::Semaphore) {
            let patch = batches.held.at(entry.addr).filter(|patch| patch.new == entry.new);
            if let Some(probe) =
                patch.map(|patch| (index, patch.probe)).filter(|probe| probes.contains(probe))
            {
                entries.push(*entry);
                found.insert(probe);
            }
        }
    }
    let left = if entries.is_empty() { 0 } else { out(batches, process, &entries)? };
    Ok(Closed { probes: found, left })
}

/// Takes sites out, here and in children. Returns how many hold other bytes than ours, or could not be written.
pub(super) fn out(batches: &mut Batches, process: &Process, entries: &[Entry]) -> Result<usize, PatchError> {
    let outcomes = take_out(process, entries, &batches.guards)?;
    batches.held.remove(&entries.iter().map(|entry| entry.addr.0).collect());
    for child in children(batches, process) {
        drop(take_out(&child, entries, &batches.guards));
    }
    Ok(outcomes.iter().filter(|outcome| !outcome.is_in_place()).count())
}

/// Children that map the segments. One that ends, or that another tracer holds, is no failure of the process.
pub(super) fn children(batches: &Batches, process: &Process) -> Vec<Process> {
    let mut users: Vec<u32> = batches.memfds().into_iter().flat_map(users_of).collect();
    users.sort_unstable();
    users.dedup();
    users
        .into_iter()
        .filter(|user| *user != process.pid())
        .filter_map(|user| process.open_child(user).ok())
        .collect()
}

/// Writes the file's bytes while all threads of a process are stopped.
fn take_out(process: &Process, entries: &[Entry], guards: &[(u64, u64)]) -> Result<Vec<Outcome>, PatchError> {
    let guard = |addr| resume(guards, addr);
    Batch::run(process, BatchOptions { hold_children: false }, |batch| {
        let mut stopped = batch.stop_all(&guard)?;
        move_out(process, &mut stopped, &guard)?;
        let mut outcomes = Vec::new();
        let result = change(&mut Still { process }, entries, Direction::Recover, &mut outcomes);
        stopped.resume()?;
        result.map_err(SpaceError::into_error)?;
        Ok(outcomes)
    })?
}
