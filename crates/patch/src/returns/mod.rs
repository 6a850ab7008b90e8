//! Return trampolines of a process, seen from outside: what is armed, how it is put back, and what unwinders
//! are told of them.

pub(crate) mod trampolines;
pub(crate) mod unwinder;
