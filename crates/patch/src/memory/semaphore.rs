//! USDT semaphores: a `u16` in the target that is not 0 while a tracer traces.
//!
//! In: journal entries. Out: counts raised and lowered. An entry's `old` and `new` are the values before and
//! after our raise. Its last byte of `old` is a mark that the raise was made, written after the raise, so
//! that a later tracer knows (SAFE-3). Other tracers raise and lower the same words; so we add and subtract,
//! and never put back a value.

use trapline_record::RemoteAddr;
use trapline_record::journal::{ENTRY_LEN, Entry, EntryKind, MAX_PATCH};
use trapline_tracee::{Process, TargetError};

use crate::error::PatchError;
use crate::memory::words::SegmentWords;
use crate::request::Module;

/// Index of the mark in `Entry::old`.
const MARK: usize = MAX_PATCH - 1;

fn value(bytes: [u8; MAX_PATCH]) -> u16 {
    u16::from_le_bytes([bytes[0], bytes[1]])
}

/// The word's present value.
pub(crate) fn read(process: &Process, addr: RemoteAddr) -> Result<u16, TargetError> {
    let mut bytes = [0; 2];
    process.read(addr, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

fn entry(addr: RemoteAddr, value: u16) -> Entry {
    let word = |v: u16| {
        let mut bytes = [0; MAX_PATCH];
        bytes[..2].copy_from_slice(&v.to_le_bytes());
        bytes
    };
    Entry {
        addr,
        len: 2,
        kind: EntryKind::Semaphore,
        starts: 0,
        old: word(value),
        new: word(value.saturating_add(1)),
    }
}

/// Entries for the semaphores of all USDT probes for which `is_placed` holds, none raised yet. A word that is
/// requested twice is raised once.
pub(crate) fn entries(
    process: &Process,
    modules: &[Module<'_>],
    is_placed: impl Fn(u32) -> bool,
) -> Result<Vec<Entry>, PatchError> {
    let placed = |m: &Module<'_>| {
        let semaphores = m.semaphores.iter().filter(|s| is_placed(s.probe));
        semaphores.map(|s| m.bias.live(s.at)).collect::<Vec<_>>()
    };
    let mut at: Vec<RemoteAddr> = modules.iter().flat_map(placed).collect();
    at.sort_unstable();
    at.dedup();
    at.into_iter().map(|addr| Ok(entry(addr, read(process, addr)?))).collect()
}

/// Raises one. Returns the entry with its mark.
pub(crate) fn raise(process: &Process, entry: &Entry) -> Result<Entry, TargetError> {
    let raised = read(process, entry.addr)?.saturating_add(1);
    process.write_text(entry.addr, &raised.to_le_bytes())?;
    let mut marked = *entry;
    marked.new[..2].copy_from_slice(&raised.to_le_bytes());
    marked.old[MARK] = 1;
    Ok(marked)
}

/// Whether it was raised: it is marked, or still has the value that the raise gives (the tracer died before
/// the mark).
pub(crate) fn is_raised(entry: &Entry, present: u16) -> bool {
    entry.old[MARK] != 0 || present == value(entry.new)
}

/// Lowers one if it was raised, but not below 0. Returns whether it did.
pub(crate) fn lower(process: &Process, entry: &Entry) -> Result<bool, TargetError> {
    let present = read(process, entry.addr)?;
    if present == 0 || !is_raised(entry, present) {
        return Ok(false);
    }
    process.write_text(entry.addr, &(present - 1).to_le_bytes())?;
    Ok(true)
}

/// Writes the entry back as if it had never been raised.
pub(crate) fn unmark(
    words: &SegmentWords<'_>,
    journal_off: u64,
    index: usize,
    entry: &Entry,
) -> Result<(), TargetError> {
    let at = journal_off + index as u64 * ENTRY_LEN;
    let mut old = entry.old;
    old[MARK] = 0;
    // A value that no counter reaches, so that the present value is not taken for a raise without its mark.
    words.set(at + 24, u64::from_le_bytes([0xff; MAX_PATCH]))?;
    words.set(at + 16, u64::from_le_bytes(old))
}

#[cfg(test)]
mod tests {
    use super::{MARK, entry, is_raised};
    use trapline_record::RemoteAddr;

    #[test]
    fn a_raise_without_its_mark_is_recognized_by_its_value() {
        let mut word = entry(RemoteAddr(0x10), 0);
        assert!(!is_raised(&word, 0));
        assert!(is_raised(&word, 1));
        word.old[MARK] = 1;
        assert!(is_raised(&word, 2), "another tracer raised it too");
    }
}
