//! x86-64: the writer of our own code, and what differs in writing other processes' code.

pub(crate) mod contexts;
pub(crate) mod cpu;
#[cfg(test)]
mod foreign_tests;
pub(crate) mod handler;
pub(crate) mod number;
pub(crate) mod own;
pub(crate) mod returns;
#[cfg(test)]
mod soft_tests;
pub(crate) mod staged;
pub(crate) mod threads;
pub(crate) mod traps;
#[cfg(test)]
mod write_tests;
