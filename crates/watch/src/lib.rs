//! Hardware breakpoints on running programs.
//!
//! In: threads and addresses. Out: accesses: by which code, when, and the values before and after.
//! Invariants:
//! - WCH-1 the target is never stopped or signalled;
//! - WCH-2 all threads are armed or none is;
//! - WCH-3 a value that is called exact is the one that this access left;
//! - WCH-4 what the kernel dropped is counted.
//!
//! Does not: resolve names, print, wait for Ctrl-C.
#![forbid(unsafe_code)]

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod accounts;
mod arm;
mod births;
mod calibrate;
pub mod constraints;
mod error;
pub mod expr;
mod holders;
pub mod record;
mod rotate;
mod settle;
pub mod spec;
mod trap_state;
pub mod value;
mod watching;
mod watchpoint;
#[cfg(target_arch = "x86_64")]
mod x86_64;

/// The twin module of the processor that this runs on.
#[cfg(target_arch = "aarch64")]
use aarch64 as native;
pub use native::site;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

pub use arm::Progress;
pub use calibrate::{Cost, cost};
pub use error::WatchError;
pub use holders::{Holder, NoRegisters, TaskRegisters};
pub use trapline_tracee::perf::{Access, Breakpoint, Family};
pub use watching::{AccessKind, CodeMap, Event, Exec, NoMap, Options, Point, Tally, Target, Watching};
pub use watchpoint::{Armable, Counter, Events, Watchpoint};
