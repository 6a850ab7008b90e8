//! Plan to changed code in a live process, and back: the only writer of code. Internal to Trapline.
//!
//! In: a process, and for each of its modules the file, where it is loaded, and what is wanted there. Out: patches in place
//! with the memory they count into ([`Attached`]), and later the process as it was ([`DetachReport`]). A later tracer finds what
//! a dead one left, and undoes it, from the process' own memory ([`status`], [`recover`]).
//!
//! Invariants: PATCH-1 to PATCH-12, argued step by step in [`protocol`]; they keep SAFE-3, SAFE-4 and SAFE-5.
//! Does not: choose functions, plan windows, make code, print.
#![forbid(unsafe_code)]

#[cfg(test)]
mod fake;
pub mod protocol;
mod space;
mod write;

pub use write::Outcome;
