//! Traps in patches of other processes: a window has interior boundaries, at which a thread may stand, so
//! traps must be served; and a window that no one write covers changes through them.
//!
//! In: bytes, windows. Out: which of them trap. Does not: write (see `staged`).

use trapline_record::journal::{Entry, EntryKind};

use super::cpu::proven;
use crate::space::LINE;

/// Whether patches need traps to be served in other processes.
pub(crate) const NEEDED: bool = true;

/// The instruction that traps.
pub(crate) const INT3: u8 = 0xcc;

/// Whether an instruction of this first byte is a trap of one byte.
pub(crate) const fn is_trap(byte: u8) -> bool {
    byte == INT3
}

/// Whether a window changes in steps, because no single write of it would be seen whole. `words`: a write of
/// eight bytes inside a line would be.
pub(crate) fn is_staged(entry: &Entry, words: bool) -> bool {
    let last = entry.addr.0 + u64::from(entry.len) - 1;
    entry.len > 1 && (!words || entry.addr.0 / LINE != last / LINE)
}

/// Whether some of these change in steps while threads run.
pub(crate) fn any_staged(entries: &[Entry]) -> bool {
    let words = proven().words;
    entries.iter().any(|entry| entry.kind != EntryKind::Semaphore && is_staged(entry, words))
}
