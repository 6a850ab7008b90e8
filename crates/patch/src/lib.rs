//! Turns a plan into changed code in a live process, and back: the only writer of code. Internal to Trapline.
//!
//! In: a process, and for each of its modules the file, where it is loaded, and the requests for it. Out:
//! patches in place with the memory that they count into ([`Attached`]), and later the process as it was
//! ([`DetachReport`]). A later tracer finds what a dead one left, and undoes it, from the process' own memory
//! ([`status`], [`recover`]).
//!
//! Invariants: PATCH-1 to PATCH-15, argued step by step in [`protocol`]; they keep SAFE-3, SAFE-4 and SAFE-5.
//! Does not: choose functions, plan windows, make code, print.
#![forbid(unsafe_code)]
#![cfg_attr(
    target_arch = "aarch64",
    allow(
        dead_code,
        reason = "what only our own process needs, with windows of several instructions, is x86-64's as yet"
    )
)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod attach;
mod attached;
mod blocked;
mod both;
mod caller;
mod cpu;
mod detach;
mod error;
#[cfg(test)]
mod fake;
mod find;
mod foreign;
mod free;
mod hold;
mod library_threads;
mod map;
#[cfg(target_arch = "x86_64")]
pub mod own;
mod own_semaphores;
mod own_trampolines;
mod prepare;
pub mod protocol;
mod publish;
mod quiesce;
mod rehearse;
mod request;
mod run;
mod segment;
mod semaphore;
mod soft;
mod space;
mod stack;
mod staged;
mod still;
mod survey;
mod toggle;
mod trampolines;
mod translated;
mod unwinder;
mod why;
mod words;
mod write;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// The twin of the processor that this runs on.
#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

#[cfg(target_arch = "aarch64")]
pub use aarch64::own;
pub use attach::attach;
pub use attached::Attached;
pub use detach::recover;
pub use error::PatchError;
pub use find::{FoundSegment, SegmentStatus, find_segments, status};
pub use foreign::Changed;
pub use free::Freed;
pub use hold::Closed;
pub use rehearse::rehearse;
pub use request::{
    AttachReport, DetachReport, Durations, Memory, Module, NotRestored, Options, Placed, Refused, Request,
    Restored, Semaphore, Threads, Timings, Untouched,
};
pub use segment::Segment;
#[doc(hidden)]
pub use toggle::toggle;
pub use trampolines::{Armed, Reclaimed, armed};
pub use translated::translator;
pub use unwinder::Unwinder;
pub use why::{NoTraps, Why};
