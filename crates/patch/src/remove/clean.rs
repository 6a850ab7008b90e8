//! Takes all patches out of one process: steps R1 to R6 of `protocol`.
//!
//! In: a process, the files of the segments. Out: text, actions and semaphores as they were, in one batch; what
//! was left alone. Every step looks before it acts, so all of it may be repeated (SAFE-3, SAFE-4).
//! Does not: look for the process' children.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use trapline_record::control::{State, at};
use trapline_record::journal::{Entry, EntryKind, MAX_PATCH};
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{Batch, BatchOptions, FileId, Process, RemoteOptions, TargetError};

use crate::error::PatchError;
use crate::memory::find::FoundSegment;
use crate::memory::segment::resume;
use crate::native::cpu::proven;
use crate::native::traps::{NEEDED, any_staged};
use crate::remove::actions::{keep_actions, put_back_actions};
use crate::remove::free::free;
use crate::remove::removal::{Removal, removals};
use crate::report::{NotRestored, Restored};
use crate::request::Options;
use crate::returns::trampolines::disarm;
use crate::returns::unwinder::take_back;
use crate::space::SpaceError;
use crate::space::change::{Direction, Outcome};
use crate::space::remote::{Running, Seizure, Still};
use crate::space::write::change;
use crate::threads::quiesce::{has_trap_waiting, quiesce};
use crate::threads::still::move_out;

/// How long a detach waits for another tracer to release the process.
const HELD_BY_ANOTHER: Duration = Duration::from_secs(5);

/// How often all threads are stopped to find none in our code.
const LOOKS: u32 = 20;

/// Steps R1 to R6 for one process. A process that ends meanwhile is gone, whatever fails because of that.
pub(crate) fn clean(
    process: &Process,
    files: &[FileId],
    options: &Options,
    way: Direction,
) -> Result<Restored, PatchError> {
    cleaned(process, files, options, way).map_err(|error| error.or_gone(process))
}

fn cleaned(
    process: &Process,
    files: &[FileId],
    options: &Options,
    way: Direction,
) -> Result<Restored, PatchError> {
    let start = Instant::now();
    let mut restored = loop {
        let run = |batch: &mut Batch<'_>| clean_in(batch, files, options, way);
        match Batch::run(process, BatchOptions { hold_children: false }, run) {
            // Another tracer holds the process for the moment of a batch; ours must come out all the same.
            Err(TargetError::AlreadyTraced { .. } | TargetError::Denied { .. })
                if start.elapsed() < HELD_BY_ANOTHER =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => break other??,
        }
    };
    restored.pid = process.pid();
    restored.total = start.elapsed();
    Ok(restored)
}

fn clean_in(
    batch: &mut Batch<'_>,
    files: &[FileId],
    options: &Options,
    way: Direction,
) -> Result<Restored, PatchError> {
    let process = batch.process();
    let removals = removals(process, files)?;
    let guards = begin(process, &removals)?;
    let guard = |addr| resume(&guards, addr);
    let remote = RemoteOptions { patience: options.patience, ..RemoteOptions::default() };
    let seizure = Seizure { guard: &guard, remote: &remote };
    let semaphores = removals.iter().map(|removal| removal.lower(process)).sum();
    let barred = barred(batch, seizure)?;
    let mut restored = Restored { semaphores, barred, ..Restored::default() };

    let clock = Instant::now();
    let strict = options.strict || restored.barred.is_some();
    let (sites, covered) = by_age(&removals);
    write_back(batch, (&removals, &sites), way, strict, seizure, &mut restored)?;
    // No patch relies on any fact now: threads that wait in our code go on (`hold`).
    for removal in &removals {
        removal.words.set(at::CLOSED, u64::MAX)?;
        removal.words.set(at::LOOKED, u64::MAX)?;
    }
    removals.iter().try_for_each(|removal| removal.forget_pages(process))?;
    restored.restore = clock.elapsed();

    let clock = Instant::now();
    quiesce(batch, &guard)?;
    hand_back(batch, (&removals, &sites), way, seizure, &mut restored)?;
    write_covered_back(batch, &covered, way, seizure)?;
    restored.quiesce = clock.elapsed();
    put_back_others(batch, &removals, seizure, &mut restored)?;
    removals.iter().try_for_each(|removal| removal.set_state(process, State::Removed))?;
    let found: Vec<FoundSegment> = removals.into_iter().map(|removal| removal.found).collect();
    if restored.barred.is_none() && (options.free || options.strict) {
        let freed = free(batch, &found, seizure)?;
        (restored.unmapped, restored.stays_mapped) = (freed.unmapped, freed.stays);
    } else {
        restored.stays_mapped = found.iter().map(FoundSegment::mapped).sum();
    }
    restored.batch = batch.report();
    Ok(restored)
}

/// Step R1. Returns the guards of all segments, sorted.
fn begin(process: &Process, removals: &[Removal<'_>]) -> Result<Vec<(u64, u64)>, PatchError> {
    let mut guards = Vec::new();
    for removal in removals {
        guards.extend(removal.found.block.guards(process, removal.found.control)?);
        removal.set_state(process, State::Removing)?;
    }
    guards.sort_unstable();
    Ok(guards)
}

/// Why no thread can make calls for us, if a filter came after us. Then bytes and return addresses are put
/// back all the same, by the tracer alone and with all threads stopped (R3, R4a). What needs a call of the
/// process' own is left: actions (R5), the registration with unwinders, mappings. All of that works on
/// without us.
fn barred(batch: &mut Batch<'_>, seizure: Seizure<'_>) -> Result<Option<String>, TargetError> {
    if batch.process().restricted()?.is_none() {
        return Ok(None);
    }
    match batch.remote(seizure.remote, seizure.guard) {
        Ok(caller) => caller.finish().map(|_| None),
        Err(TargetError::NoCaller { why, .. }) => Ok(Some(why)),
        Err(error) => Err(error),
    }
}

/// Steps R2a and R3. `strict`: with all threads stopped, whatever the patches are.
fn write_back(
    batch: &mut Batch<'_>,
    (removals, sites): (&[Removal<'_>], &[Entry]),
    way: Direction,
    strict: bool,
    seizure: Seizure<'_>,
    restored: &mut Restored,
) -> Result<(), PatchError> {
    let process = batch.process();
    let entries: Vec<Entry> = sites.iter().filter(|e| e.kind != EntryKind::Handler).copied().collect();
    let mut outcomes = Vec::new();
    // No handler serves a trap there, and a trap would be left if we died between two steps.
    let unserved = removals.iter().all(|r| r.handles() == 0);
    let still = strict || removals.iter().any(Removal::is_trap_the_programs);
    let result = if still || !NEEDED || (unserved && !proven().words) {
        let mut stopped = batch.stop_all(seizure.guard)?;
        move_out(process, &mut stopped, seizure.guard)?;
        let result = change(&mut Still { process }, &entries, way, &mut outcomes);
        stopped.resume()?;
        result
    } else {
        if any_staged(&entries) {
            quiesce(batch, seizure.guard)?;
            keep_actions(batch, removals, seizure)?;
        }
        change(&mut Running { batch, seizure }, &entries, way, &mut outcomes)
    };
    result.map_err(SpaceError::into_error)?;
    tally(&entries, &outcomes, restored);
    Ok(())
}

/// The sites that a segment was the last to patch, and those that a later one has patched again. What holds the
/// bytes of the latter is the program's, or the later segment's.
fn by_age(removals: &[Removal<'_>]) -> (Vec<Entry>, Vec<Entry>) {
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut last, mut covered) = (Vec::new(), Vec::new());
    for removal in removals {
        let known = taken.clone();
        for entry in &removal.entries {
            let (start, end) = (entry.addr.0, entry.addr.0 + u64::from(entry.len));
            let before = known.range(..end).next_back();
            if entry.kind != EntryKind::Semaphore && before.is_some_and(|(_, until)| *until > start) {
                covered.push(*entry);
            } else {
                last.push(*entry);
                taken.insert(start, end);
            }
        }
    }
    (last, covered)
}

/// Sites that a later segment has patched again, and that hold the earlier one's bytes all the same.
fn write_covered_back(
    batch: &mut Batch<'_>,
    covered: &[Entry],
    way: Direction,
    seizure: Seizure<'_>,
) -> Result<(), PatchError> {
    let process = batch.process();
    let is_there = |entry: &&Entry| {
        let (len, mut present) = (usize::from(entry.len), [0; MAX_PATCH]);
        process.read(entry.addr, &mut present[..len]).is_ok() && present[..len] == entry.new[..len]
    };
    let entries: Vec<Entry> = covered.iter().filter(is_there).copied().collect();
    if entries.is_empty() {
        return Ok(());
    }
    let mut stopped = batch.stop_all(seizure.guard)?;
    move_out(process, &mut stopped, seizure.guard)?;
    let result = change(&mut Still { process }, &entries, way, &mut Vec::new());
    stopped.resume()?;
    result.map_err(SpaceError::into_error)?;
    // A thread may have trapped there before the stop.
    quiesce(batch, seizure.guard)
}

/// Step R4b: entries of the program's handlers of faults, once no thread is in a copy that may fault. No byte of
/// the text leads to one any more. With a thread that stays in our code they are put back all the same.
fn hand_back(
    batch: &mut Batch<'_>,
    (removals, sites): (&[Removal<'_>], &[Entry]),
    way: Direction,
    seizure: Seizure<'_>,
    restored: &mut Restored,
) -> Result<(), PatchError> {
    let process = batch.process();
    let entries: Vec<Entry> = sites.iter().filter(|e| e.kind == EntryKind::Handler).copied().collect();
    if entries.is_empty() {
        return Ok(());
    }
    // Other windows hold the program's bytes, so a thread that stands there goes on there.
    let is_covered = |at: u64| entries.iter().any(|e| at.wrapping_sub(e.addr.0) < u64::from(e.len));
    let guard = |at: u64| (seizure.guard)(at).filter(|_| is_covered(at));
    for left in (0..LOOKS).rev() {
        let mut stopped = batch.stop_all(seizure.guard)?;
        move_out(process, &mut stopped, &guard)?;
        // At a handler's first byte, its context may still show a copy.
        let in_code = |pc| is_covered(pc) || removals.iter().any(|removal| removal.found.is_code(pc));
        let is_inside =
            |tid| has_trap_waiting(process, tid) || stopped.regs(tid).is_ok_and(|regs| in_code(regs.pc()));
        if left > 0 && stopped.threads().into_iter().any(is_inside) {
            stopped.resume()?;
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut outcomes = Vec::new();
        let result = change(&mut Still { process }, &entries, way, &mut outcomes);
        stopped.resume()?;
        result.map_err(SpaceError::into_error)?;
        tally(&entries, &outcomes, restored);
        break;
    }
    Ok(())
}

/// Steps R4a and R5: return addresses, what unwinders were given, and actions. If some call is still to come
/// back through its return trampoline, unwinders keep what they were given (UNW-1).
fn put_back_others(
    batch: &mut Batch<'_>,
    removals: &[Removal<'_>],
    seizure: Seizure<'_>,
    restored: &mut Restored,
) -> Result<(), PatchError> {
    let trampolines: Vec<Trampolines> =
        removals.iter().filter_map(|removal| removal.found.block.trampolines()).collect();
    let done = disarm(batch, &trampolines, seizure.guard)?;
    restored.returns = done.restored;
    if restored.barred.is_some() {
        return Ok(());
    }
    let pid = batch.process().pid();
    for removal in removals.iter().filter(|r| r.found.owner() == pid && done.left == 0) {
        take_back(batch, &removal.found.block, &removal.words, seizure.guard)?;
    }
    put_back_actions(batch, removals, seizure, restored)
}

/// Counts what became of each site.
fn tally(entries: &[Entry], outcomes: &[Outcome], restored: &mut Restored) {
    for (entry, outcome) in entries.iter().zip(outcomes).filter(|(e, _)| e.kind != EntryKind::Semaphore) {
        let left = |found| NotRestored { addr: entry.addr, found, len: entry.len };
        match outcome {
            Outcome::Done => restored.sites += 1,
            Outcome::Already => restored.already += 1,
            Outcome::KeptBreakpoint => restored.breakpoints += 1,
            Outcome::Differs { found } => restored.left.push(left(Some(*found))),
            Outcome::Unreachable => restored.left.push(left(None)),
        }
    }
}
