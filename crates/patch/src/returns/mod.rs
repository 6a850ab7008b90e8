//! Return trampolines of a process, seen from outside.
//!
//! `armed` reads which calls use them; `trampolines` puts return addresses back, and gives trampolines back to
//! which no call returns; `unwinder` informs unwinders.

pub(crate) mod armed;
pub(crate) mod trampolines;
pub(crate) mod unwinder;
