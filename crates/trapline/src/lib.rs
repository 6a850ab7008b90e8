//! Count and time the functions of running programs, from outside, without traps.
//!
//! In: probes, in bpftrace's syntax, and the processes in which to set them. Out: counts and durations; at
//! the end, the processes as they were.
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
//! Dropping a [`Session`] detaches too. Invariants: SES-1, SES-2, TRC-1, TRC-2; each is described in the
//! module that keeps it. Does not: print, wait, or handle signals; that is left to the program (see
//! [`Interrupts`] for a way to wait for Ctrl-C).
#![deny(unsafe_code)]
#![cfg_attr(
    target_arch = "aarch64",
    allow(dead_code, reason = "what only jumps of our own process need is x86-64's as yet")
)]

mod arch;
mod builder;
mod calls;
mod choose;
mod decode;
mod error;
mod files;
pub mod filter;
mod follow;
mod form;
mod group_by;
mod histogram;
pub mod inside;
mod inspect;
mod library;
mod modules;
mod names;
mod pairing;
mod past;
mod procfs;
mod prototypes;
mod quick;
mod report;
mod requests;
pub mod saved;
mod session;
mod session_request;
mod sites;
mod stacks;
mod summary;
mod tallies;
mod target;
mod threads;
mod times;
mod traced;
mod tracers;
mod unwinders;
mod values;
pub mod watch;
mod why;

pub use builder::Builder;
pub use calls::{Call, CallEnd, Reading, Text};
pub use error::Error;
pub use form::Returns;
pub use histogram::{Histogram, HistogramRow, Scale};
pub use inspect::{Listing, clean_up, patched};
pub use modules::is_short_name;
pub use prototypes::Noted;
pub use report::{
    By, Count, Ended, Filtered, Group, Late, Listed, ProcessReport, Refused, Share, Site, Tactic, Times,
    Unprobed,
};
pub use session::{Finished, Running, Session};
pub use stacks::{Frame, Function, StackFile, StackSum, Symbols, Unwinding};
pub use summary::{ByTactic, Overwritten, Summary};
pub use tallies::{GroupHits, Tallied};
pub use target::Target;
pub use trapline_image::{
    DeclaredParameter, Field, Misplaced, NoField, ParameterPlace, Pattern, ProbeKind, ProbeSpec, Prototype,
    SpecError, ValueType,
};
pub use trapline_patch::{DetachReport, PatchError, Restored, SegmentStatus, Untouched};
/// Which floats records hold.
pub use trapline_plan::{Floats, Read};
pub use trapline_record::control::State;
pub use trapline_record::hist::{BUCKETS, bucket};
pub use trapline_record::ring::TEXT_BYTES;
pub use trapline_tracee::{Interrupt, Interrupts, TargetError, kernel, time_of_day};
