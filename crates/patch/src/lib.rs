//! Plan to changed code in a live process, and back: the only writer of code. Internal to Trapline.
//!
//! In: a process, and for each of its modules the file, where it is loaded, and what is wanted there. Out: patches in place
//! with the memory they count into ([`Attached`]), and later the process as it was ([`DetachReport`]). A later tracer finds what
//! a dead one left, and undoes it, from the process' own memory ([`status`], [`recover`]).
//!
//! Invariants: PATCH-1 to PATCH-12, argued step by step in [`protocol`]; they keep SAFE-3, SAFE-4 and SAFE-5.
//! Does not: choose functions, plan windows, make code, print.
#![forbid(unsafe_code)]

mod attach;
mod attached;
mod caller;
mod cpu;
mod detach;
mod error;
#[cfg(test)]
mod fake;
mod find;
mod free;
mod map;
mod number;
pub mod own;
mod prepare;
pub mod protocol;
mod publish;
mod quiesce;
mod rehearse;
mod request;
mod run;
mod segment;
mod semaphore;
mod slots;
mod space;
mod stack;
mod still;
mod survey;
mod toggle;
mod unwinder;
mod words;
mod write;

pub use attach::attach;
pub use attached::Attached;
pub use detach::recover;
pub use error::PatchError;
pub use find::{Found, SegmentStatus, find_segments, status};
pub use rehearse::rehearse;
pub use request::{
    AttachReport, DetachReport, Durations, Left, Memory, Module, NoTraps, Options, Placed, Refused, Request,
    Restored, Semaphore, Timings, Untouched, Why,
};
pub use segment::Segment;
pub use slots::{Armed, Reclaimed, armed};
#[doc(hidden)]
pub use toggle::toggle;
pub use unwinder::Unwinder;
