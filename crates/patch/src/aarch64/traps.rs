//! Whether patches need traps to be served in other processes: no. A patch is one word, inside which no
//! thread can stand, so nothing traps.

use trapline_record::journal::Entry;

/// Whether patches need traps to be served in other processes.
pub(crate) const NEEDED: bool = false;

/// Whether an instruction of this first byte is a trap of one byte. There is none.
pub(crate) const fn is_trap(_: u8) -> bool {
    false
}

/// Whether a window changes in steps. One write covers each.
pub(crate) const fn is_staged(_: &Entry, _: bool) -> bool {
    false
}

/// Whether some of these change in steps while threads run.
pub(crate) const fn any_staged(_: &[Entry]) -> bool {
    false
}
