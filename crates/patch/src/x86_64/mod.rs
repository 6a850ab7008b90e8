//! x86-64: what differs in writing code.

pub(crate) mod contexts;
pub(crate) mod number;
pub(crate) mod own;
pub(crate) mod returns;
pub(crate) mod threads;
pub(crate) mod traps;
