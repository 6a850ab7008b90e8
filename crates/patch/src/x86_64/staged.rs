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
use crate::space::write::SERVE_EVERY_RUN;
use crate::space::{CodeSpace, SpaceError};

/// Number of writes to a window, with a core sync behind each.
pub(crate) const STEPS: usize = 3;
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

/// Takes a step for each window, a core sync behind all of them. `steps`: indices into `entries`, each with its step;
/// first those of one phase, sorted by address, then those of another. They leave sorted by address.
pub(crate) fn change_steps(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    steps: &mut [(usize, u8)],
    way: Direction,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    if steps.is_empty() {
        return Ok(());
    }
    steps.sort_by_key(|&(index, _)| entries[index].addr);
    let pages = steps.chunk_by(|&(a, _), &(b, _)| same_run(&entries[a], &entries[b]));
    for (nth, page) in pages.enumerate() {
        match take_steps(space, entries, page, way, outcomes) {
            // Not all of the stretch is mapped, so each is written by itself.
            Err(SpaceError::Place(_)) => {
                for &(index, step) in page {
                    let alone = take_steps(space, entries, &[(index, step)], way, outcomes);
                    outcomes[index] = Outcome::of(alone.map(|()| outcomes[index]))?;
                }
            }
            other => other?,
        }
        if nth % SERVE_EVERY_RUN == SERVE_EVERY_RUN - 1 {
            space.serve()?;
        }
    }
    // T6 is not needed on the way to a jump.
    let is_last = |&(_, step): &(usize, u8)| usize::from(step) == STEPS - 1;
    if !(way.installs() && steps.iter().all(is_last)) {
        space.sync()?;
    }
    space.serve()
}

/// One step for each window of `page`, by one write from the first word that changes to the last. The first
/// step decides the result for each.
fn take_steps(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    page: &[(usize, u8)],
    way: Direction,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    let end_of = |index: usize| entries[index].addr.0 + u64::from(entries[index].len);
    let start = entries[page[0].0].addr.0 / WORD * WORD;
    let end = page.iter().map(|&(index, _)| end_of(index)).max().unwrap_or(start).next_multiple_of(WORD);
    let mut bytes = vec![0; (end - start) as usize];
    space.read(RemoteAddr(start), &mut bytes)?;
    let (mut from, mut to) = (bytes.len(), 0);
    for &(index, step) in page {
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
