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
mod attached;
mod both;
mod error;
mod foreign;
mod install;
mod memory;
pub mod own;
pub mod protocol;
mod remove;
mod request;
mod returns;
mod space;
mod threads;
mod why;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// The twin of the processor that this runs on.
#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

pub use attached::Attached;
pub use error::PatchError;
pub use foreign::Changed;
pub use install::attach::attach;
pub use install::rehearse::rehearse;
pub use install::translated::translator;
pub use memory::find::{FoundSegment, SegmentStatus, find_segments, status};
pub use memory::segment::Segment;
pub use remove::detach::recover;
pub use remove::free::Freed;
pub use remove::hold::Closed;
#[doc(hidden)]
pub use remove::toggle::toggle;
pub use request::{
    AttachReport, DetachReport, Durations, Memory, Module, NotRestored, Options, Placed, Refused, Request,
    Restored, Semaphore, Threads, Timings, Untouched,
};
pub use returns::trampolines::{Armed, Reclaimed, armed};
pub use returns::unwinder::Unwinder;
pub use why::{NoTraps, Why};
