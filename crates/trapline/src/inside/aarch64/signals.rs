//! Handlers of signals that are sent: called as they are, without wrappers. If a signal arrives while its
//! thread runs a copy, its handler sees the copy's address (a copy is one instruction and a branch).
//!
//! In, out: nothing.

/// Whether libc's `sigaction` is replaced: not here.
pub(in crate::inside) const fn is_known() -> bool {
    false
}

/// Address of the function that would replace it: none.
pub(in crate::inside) const fn instead() -> u64 {
    0
}

/// Present handlers stay as they are.
pub(in crate::inside) const fn put() {}
