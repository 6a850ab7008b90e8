//! arm64: the writer of our own code, and what differs in writing other processes' code.

pub(crate) mod contexts;
pub(crate) mod cpu;
pub(crate) mod handler;
pub(crate) mod number;
pub(crate) mod own;
pub(crate) mod protocol;
pub(crate) mod returns;
pub(crate) mod staged;
pub(crate) mod threads;
pub(crate) mod traps;
