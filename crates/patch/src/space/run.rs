//! Changes many windows of one page in one write.
//!
//! In: a [`CodeSpace`] with proven long writes, and entries with windows that each lie in an aligned word of
//! eight bytes, all in one page. Out: for each what became of it. Invariants: PATCH-5, PATCH-11.
//! Does not: write windows that leave their word, or wait (see `write`).
//!
//! A write begins and ends at an aligned word, and the kernel copies it word by word (`cpu::Copy::Words`). So
//! a thread that fetches the line sees each window before or after its change; the words between are stored
//! as they were. A foreign writer (a kernel uprobe put on the same page) that came between our read and our
//! write would be undone. Therefore the page is read just before it is written, microseconds apart, and
//! written no further than from the first window that changes to the last.

use trapline_record::RemoteAddr;
use trapline_record::journal::{Entry, MAX_PATCH};

use crate::space::change::{Change, Direction, Outcome};
use crate::space::{CodeSpace, SpaceError};

/// Number of bytes that are stored at once.
const WORD: u64 = MAX_PATCH as u64;
/// Range within which one write stays.
const PAGE: u64 = 4096;

/// Whether a window lies in one aligned word.
pub(crate) fn in_word(entry: &Entry) -> bool {
    entry.addr.0 % WORD + u64::from(entry.len) <= WORD
}

/// Whether two windows may be changed by one write.
pub(crate) fn same_run(a: &Entry, b: &Entry) -> bool {
    a.addr.0 / PAGE == b.addr.0 / PAGE
}

/// Changes the windows of `run`: indices into `entries`, sorted by address, not empty.
///
/// # Errors
/// [`SpaceError::Place`] if the stretch cannot be read or written as a whole; nothing was changed then.
pub(crate) fn change_run(
    space: &mut impl CodeSpace,
    entries: &[Entry],
    run: &[usize],
    way: Direction,
    outcomes: &mut [Outcome],
) -> Result<(), SpaceError> {
    let start = entries[run[0]].addr.0 / WORD * WORD;
    let end = (entries[run[run.len() - 1]].addr.0 / WORD + 1) * WORD;
    let mut page = [0; PAGE as usize];
    let bytes = &mut page[..(end - start) as usize];
    space.read(RemoteAddr(start), bytes)?;
    let (mut from, mut to) = (bytes.len(), 0);
    for &index in run {
        let change = Change::new(&entries[index], way);
        let at = (change.addr() - start) as usize;
        let window = &mut bytes[at..at + change.after().len()];
        let (outcome, part) = change.decide(space, window, way);
        outcomes[index] = outcome;
        if let Some(part) = part {
            window[part..].copy_from_slice(&change.after()[part..]);
            let word = at / MAX_PATCH * MAX_PATCH;
            (from, to) = (from.min(word), word + MAX_PATCH);
        }
    }
    if from < to { space.write(RemoteAddr(start + from as u64), &bytes[from..to]) } else { Ok(()) }
}
