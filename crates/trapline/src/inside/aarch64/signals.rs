//! The program's handlers of signals that are sent: they are called as they are. One that arrives while its thread runs a copy sees the copy's address
//! (a copy is one instruction and a branch).
//!
//! In, out: nothing.

/// Whether libc's function for it is replaced: not here.
pub(in crate::inside) const fn is_known() -> bool {
    false
}

/// What would take its place.
pub(in crate::inside) const fn instead() -> u64 {
    0
}

/// Handlers that there are stay.
pub(in crate::inside) const fn put() {}
