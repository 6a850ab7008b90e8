//! Turns a plan into changed code in a live process, and back: the only writer of code. Internal to Trapline.
//!
//! In: a process, and for each of its modules the file, where it is loaded, and the requests for it. Out:
//! patches in place with the memory that they count into ([`Attached`]), and later the process as it was
//! ([`DetachReport`]). A later tracer finds what a dead one left, and undoes it, from the process' own memory
//! ([`status`], [`recover`]).
//!
//! From the ground up: values (`request`, `report`, `why`, `error`, `signals`, `held`); `space`, how bytes of
//! code are written. Then `memory`, what a batch shares with the process; `threads`, what threads show;
//! `returns`, return trampolines; `batches`, what a session has left in a process. Then `install` and
//! `remove`, the steps; [`Attached`] and [`own`], what callers use. `x86_64` and `aarch64` hold what differs
//! by processor.
//!
//! Invariants: PATCH-1 to PATCH-15, and PATCH-17, argued step by step in [`protocol`]; they keep SAFE-3, SAFE-4 and SAFE-5.
//! Does not: choose functions, plan windows, make code, print.
#![forbid(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod attached;
mod batches;
mod both;
mod error;
mod foreign;
mod held;
mod install;
mod loading;
mod memory;
pub mod own;
pub mod protocol;
mod remove;
mod report;
mod request;
mod returns;
mod signals;
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

pub use attached::{Attached, attach};
pub use error::PatchError;
pub use foreign::Changed;
pub use install::rehearse::rehearse;
pub use install::translated::translator;
pub use loading::Tickets;
pub use memory::find::{FoundSegment, SegmentStatus, find_segments, status};
pub use memory::segment::Segment;
pub use memory::waiting::Waiting;
pub use remove::detach::recover;
pub use remove::free::Freed;
pub use remove::hold::{Askers, Closed};
#[doc(hidden)]
pub use remove::toggle::toggle;
pub use report::{
    AttachReport, DetachReport, Memory, NotRestored, Placed, Refused, Restored, Timings, Untouched,
};
pub use request::{Durations, Module, Options, Request, Semaphore, Threads, Unwinder};
pub use returns::armed::{Armed, armed};
pub use returns::trampolines::Reclaimed;
pub use why::{NoTraps, Why};
