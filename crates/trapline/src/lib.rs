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

mod builder;
mod calls;
mod cost;
mod error;
mod files;
mod follow;
pub mod inside;
mod inspect;
mod modules;
mod names;
mod question;
mod report;
mod session;
mod sites;
mod split;
mod spread;
mod target;
mod threads;
mod times;
mod traced;
pub mod watch;

pub use builder::Builder;
pub use calls::{Call, How};
pub use error::Error;
pub use inspect::{Listing, clean_up, patched};
pub use report::{
    By, ByTactic, Count, Ended, Listed, ProcessReport, Refused, Share, Site, Summary, Tactic, Times, Whose,
};
pub use session::{Finished, Running, Session};
pub use spread::{Row, Scale, Spread};
pub use target::Target;
pub use trapline_image::{Pattern, ProbeKind, ProbeSpec, SpecError};
pub use trapline_patch::{DetachReport, PatchError, Restored, SegmentStatus, Untouched};
pub use trapline_record::control::State;
pub use trapline_record::hist::{BUCKETS, bucket};
pub use trapline_target::{Interrupt, Interrupts, TargetError, kernel, time_of_day};
