//! Changes windows through traps, T1 to T6 of `protocol`: right whichever part of a write a CPU sees first.
//!
//! In: a [`CodeSpace`], entries with known interior boundaries. Out: for each what became of it.
//! Invariants: PATCH-6, PATCH-11.
//! Does not: check what was proven about this CPU (see `cpu`), write windows that one write can change (see
//! `write`, `run`).

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, MAX_PATCH};

use super::traps::INT3;
use crate::space::change::{Change, Direction, Outcome};
use crate::space::run::same_run;
use crate::space::{CodeSpace, SpaceError};

/// Number of writes to a window, with a core sync behind each.
const STEPS: u8 = 3;
const WORD: u64 = MAX_PATCH as u64;

/// What a window holds after a step. Between two syncs only two kinds of bytes change: traps, each a single
/// byte, and bytes that no thread reaches.
fn after(entry: &Entry, way: Direction, step: u8) -> [u8; MAX_PATCH] {
    let (mut bytes, is_closed) = match (way.installs(), step) {
        (true, 0) => (entry.old, true),
        (true, 1) | (false, 0) => (entry.new, true),
        (true, _) => (entry.new, false),
        (false, 1) => (entry.old, true),
        (false, _) => (entry.old, false),
    };
    let closed = (0..MAX_PATCH).filter(|&n| is_closed && (entry.starts | 1) & 1 << n != 0);
    closed.for_each(|n| bytes[n] = INT3);
    bytes
}

/// Changes the windows of `group`, indices into `entries` sorted by address. All of them share each core
/// sync.
pub(crate) fn change_staged(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    group: &[usize],
    way: Direction,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    let mut open = group.to_vec();
    for step in 0..STEPS {
        if open.is_empty() {
            return Ok(());
        }
        for page in open.chunk_by(|&a, &b| same_run(&entries[a], &entries[b])) {
            match take_step(space, entries, page, way, step, outcomes) {
                // Not all of the stretch is mapped, so each is written by itself.
                Err(SpaceError::Place(_)) => {
                    for &index in page {
                        let alone = take_step(space, entries, &[index], way, step, outcomes);
                        outcomes[index] = Outcome::of(alone.map(|()| outcomes[index]))?;
                    }
                }
                other => other?,
            }
            space.serve()?;
        }
        open.retain(|&index| matches!(outcomes[index], Outcome::Done | Outcome::KeptBreakpoint));
        // T6 is not needed on the way to a jump.
        if !(step == STEPS - 1 && way.installs()) {
            space.sync()?;
        }
        space.serve()?;
    }
    Ok(())
}

/// One step for the windows of `run`, by one write from the first word that changes to the last. The first
/// step decides the result for each.
fn take_step(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    run: &[usize],
    way: Direction,
    step: u8,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    let end_of = |index: usize| entries[index].addr.0 + u64::from(entries[index].len);
    let start = entries[run[0]].addr.0 / WORD * WORD;
    let end = run.iter().map(|&index| end_of(index)).max().unwrap_or(start).next_multiple_of(WORD);
    let mut bytes = vec![0; (end - start) as usize];
    space.read(RemoteAddr(start), &mut bytes)?;
    let (mut from, mut to) = (bytes.len(), 0);
    for &index in run {
        let entry = &entries[index];
        let (at, len) = ((entry.addr.0 - start) as usize, usize::from(entry.len));
        let window = &mut bytes[at..at + len];
        if step == 0 {
            outcomes[index] = Change::new(entry, way).decide(space, window, way).0;
        }
        let kept = match outcomes[index] {
            Outcome::Done => 0,
            Outcome::KeptBreakpoint => 1,
            _ => continue,
        };
        window[kept..].copy_from_slice(&after(entry, way, step)[kept..len]);
        from = from.min(at / MAX_PATCH * MAX_PATCH);
        to = to.max((at + len).next_multiple_of(MAX_PATCH));
    }
    if from < to { space.write_parts(RemoteAddr(start + from as u64), &bytes[from..to]) } else { Ok(()) }
}

#[cfg(test)]
#[path = "staged_tests.rs"]
mod tests;
