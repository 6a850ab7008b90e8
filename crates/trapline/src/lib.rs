//! Count and time the functions of running programs, from outside, without traps.
//!
//! In: probes, in bpftrace's words, and the processes they are meant for. Out: counts and durations, and at the end the
//! processes as they were.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), trapline::Error> {
//! let mut session = trapline::Session::builder().pid(1234).probe("libssl:SSL_*")?.count()?;
//! for _ in 0..50 {
//!     std::thread::sleep(Duration::from_millis(100));
//!     session.poll(); // finds libraries that were loaded meanwhile
//! }
//! let finished = session.detach();
//! for count in finished.reports.iter().flat_map(|process| &process.counts) {
//!     println!("{:>10} {}", count.hits, count.site.label);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Dropping a [`Session`] detaches too. Invariants: SES-1, SES-2, TRC-1, TRC-2, where they are kept. Does not: print, wait, or
//! handle signals; that is the program's own business (see [`Interrupts`] for a way to wait for Ctrl-C).
#![deny(unsafe_code)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(
        dead_code,
        reason = "sessions are written for x86-64; on other processors a program probes itself alone"
    )
)]

#[cfg(target_arch = "x86_64")]
mod builder;
#[cfg(target_arch = "x86_64")]
mod calls;
#[cfg(target_arch = "x86_64")]
mod cost;
#[cfg(target_arch = "x86_64")]
mod decode;
#[cfg(target_arch = "x86_64")]
mod error;
mod files;
#[cfg(target_arch = "x86_64")]
pub mod filter;
#[cfg(target_arch = "x86_64")]
mod follow;
mod form;
pub mod inside;
#[cfg(target_arch = "x86_64")]
mod inspect;
mod modules;
mod names;
#[cfg(target_arch = "x86_64")]
mod prototypes;
#[cfg(target_arch = "x86_64")]
mod question;
#[cfg(target_arch = "x86_64")]
mod quick;
#[cfg(target_arch = "x86_64")]
mod report;
#[cfg(target_arch = "x86_64")]
mod returns;
#[cfg(target_arch = "x86_64")]
pub mod saved;
#[cfg(target_arch = "x86_64")]
mod session;
#[cfg(target_arch = "x86_64")]
mod sites;
#[cfg(target_arch = "x86_64")]
mod split;
#[cfg(target_arch = "x86_64")]
mod spread;
#[cfg(target_arch = "x86_64")]
mod stacks;
#[cfg(target_arch = "x86_64")]
mod tallies;
#[cfg(target_arch = "x86_64")]
mod target;
#[cfg(target_arch = "x86_64")]
mod threads;
#[cfg(target_arch = "x86_64")]
mod times;
#[cfg(target_arch = "x86_64")]
mod traced;
#[cfg(target_arch = "x86_64")]
mod unwinders;
#[cfg(target_arch = "x86_64")]
pub mod watch;
mod why;

#[cfg(target_arch = "x86_64")]
pub use builder::Builder;
#[cfg(target_arch = "x86_64")]
pub use calls::{Call, How, Reading, Text};
#[cfg(target_arch = "x86_64")]
pub use error::Error;
pub use form::Returns;
#[cfg(target_arch = "x86_64")]
pub use inspect::{Listing, clean_up, patched};
#[cfg(target_arch = "x86_64")]
pub use prototypes::Noted;
#[cfg(target_arch = "x86_64")]
pub use report::{
    By, ByTactic, Count, Ended, Filtered, Listed, ProcessReport, Refused, Share, Site, Summary, Tactic,
    Times, Whose,
};
#[cfg(target_arch = "x86_64")]
pub use session::{Finished, Running, Session};
#[cfg(target_arch = "x86_64")]
pub use spread::{Row, Scale, Spread};
#[cfg(target_arch = "x86_64")]
pub use stacks::{Frame, Function, StackFile, StackSum, Symbols, Unwinding};
#[cfg(target_arch = "x86_64")]
pub use tallies::{Part, Tallied};
#[cfg(target_arch = "x86_64")]
pub use target::Target;
#[cfg(target_arch = "x86_64")]
pub use trapline_image::{
    DeclaredParameter, Field, Misplaced, NoField, ParameterPlace, Pattern, ProbeKind, ProbeSpec, Prototype,
    SpecError, ValueType,
};
#[cfg(target_arch = "x86_64")]
pub use trapline_patch::{DetachReport, PatchError, Restored, SegmentStatus, Untouched};
#[cfg(target_arch = "x86_64")]
/// Which floats records hold.
pub use trapline_plan::{Floats, Read};
#[cfg(target_arch = "x86_64")]
pub use trapline_record::control::State;
#[cfg(target_arch = "x86_64")]
pub use trapline_record::hist::{BUCKETS, bucket};
#[cfg(target_arch = "x86_64")]
pub use trapline_record::ring::TEXT_BYTES;
#[cfg(target_arch = "x86_64")]
pub use trapline_target::{Interrupt, Interrupts, TargetError, kernel, time_of_day};
