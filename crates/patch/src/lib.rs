//! Plan to changed code in a live process, and back: the only writer of code. Internal to Trapline.
//!
//! In: a process, and for each of its modules the file, where it is loaded, and what is wanted there. Out: patches in place
//! with the memory they count into ([`Attached`]), and later the process as it was ([`DetachReport`]). A later tracer finds what
//! a dead one left, and undoes it, from the process' own memory ([`status`], [`recover`]).
//!
//! Invariants: PATCH-1 to PATCH-12, argued step by step in [`protocol`]; they keep SAFE-3, SAFE-4 and SAFE-5.
//! Does not: choose functions, plan windows, make code, print.
#![forbid(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod attach;
#[cfg(target_arch = "x86_64")]
mod attached;
mod blocked;
#[cfg(target_arch = "x86_64")]
mod caller;
#[cfg(target_arch = "x86_64")]
mod cpu;
#[cfg(target_arch = "x86_64")]
mod detach;
mod error;
#[cfg(all(test, target_arch = "x86_64"))]
mod fake;
#[cfg(target_arch = "x86_64")]
mod find;
#[cfg(target_arch = "x86_64")]
mod free;
#[cfg(target_arch = "x86_64")]
mod map;
#[cfg(target_arch = "x86_64")]
mod number;
#[cfg(target_arch = "x86_64")]
pub mod own;
mod own_semaphores;
#[cfg(target_arch = "x86_64")]
mod prepare;
#[cfg(target_arch = "x86_64")]
pub mod protocol;
#[cfg(target_arch = "x86_64")]
mod publish;
#[cfg(target_arch = "x86_64")]
mod quiesce;
#[cfg(target_arch = "x86_64")]
mod rehearse;
#[cfg(target_arch = "x86_64")]
mod request;
#[cfg(target_arch = "x86_64")]
mod run;
#[cfg(target_arch = "x86_64")]
mod segment;
#[cfg(target_arch = "x86_64")]
mod semaphore;
#[cfg(target_arch = "x86_64")]
mod slots;
#[cfg(target_arch = "x86_64")]
mod space;
#[cfg(target_arch = "x86_64")]
mod stack;
#[cfg(target_arch = "x86_64")]
mod still;
#[cfg(target_arch = "x86_64")]
mod survey;
#[cfg(target_arch = "x86_64")]
mod toggle;
#[cfg(target_arch = "x86_64")]
mod unwinder;
mod why;
#[cfg(target_arch = "x86_64")]
mod words;
#[cfg(target_arch = "x86_64")]
mod write;

#[cfg(target_arch = "aarch64")]
pub use aarch64::own;
#[cfg(target_arch = "x86_64")]
pub use attach::attach;
#[cfg(target_arch = "x86_64")]
pub use attached::Attached;
#[cfg(target_arch = "x86_64")]
pub use detach::recover;
pub use error::PatchError;
#[cfg(target_arch = "x86_64")]
pub use find::{Found, SegmentStatus, find_segments, status};
#[cfg(target_arch = "x86_64")]
pub use rehearse::rehearse;
#[cfg(target_arch = "x86_64")]
pub use request::{
    AttachReport, DetachReport, Durations, Left, Memory, Module, Options, Placed, Refused, Request, Restored,
    Semaphore, Timings, Untouched,
};
#[cfg(target_arch = "x86_64")]
pub use segment::Segment;
#[cfg(target_arch = "x86_64")]
pub use slots::{Armed, Reclaimed, armed};
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub use toggle::toggle;
#[cfg(target_arch = "x86_64")]
pub use unwinder::Unwinder;
pub use why::{NoTraps, Why};
