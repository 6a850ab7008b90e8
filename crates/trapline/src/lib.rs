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
//! Dropping a [`Session`] detaches too. What else there is:
//!
//! | to | see |
//! |---|---|
//! | choose processes, and how calls' ends are seen | [`Target`], [`Returns`], [`By`] |
//! | time calls | [`Builder::latency`], [`Times`], [`histogram`] |
//! | record calls, with arguments, texts and fields | [`Builder::record`], [`Call`], [`calls`] |
//! | decide which hits count | [`filter`], [`Builder::filters`] |
//! | add hits up by a value | [`Builder::tally`], [`aggregation`] |
//! | record at some probes, and count or add up at others | [`Builder::actions`] |
//! | see callers | [`Builder::stacks`], [`Unwinding`], [`stacks`] |
//! | save records, and read them back | [`Session::save`], [`saved`] |
//! | record every call, and read them back | [`Builder::record_words`], [`recorded`] |
//! | list what a probe means, before anything is patched | [`Builder::list`], [`listing`], [`probes`] |
//! | know what functions take and return | [`Builder::prototypes`], [`prototypes`] |
//! | read arguments on the stack, and any register | [`beyond`] |
//! | watch a variable | [`watch`] |
//! | probe the program's own functions | [`inside`] |
//! | go on with a probe that is half typed | [`completion`] |
//! | show how far long work is | [`Builder::on_progress`], [`progress`] |
//! | clean up after a tracer that died | [`cleanup`] |
//!
//! Invariants: SES-1, SES-2, TRC-1, TRC-2; each is described in the module that keeps it. Does not: print,
//! wait, or handle signals; that is left to the program (see [`Interrupts`] for a way to wait for Ctrl-C).
#![deny(unsafe_code)]

pub mod aggregation;
mod arch;
mod arriving;
pub mod beyond;
mod builder;
pub mod calls;
mod choose;
pub mod cleanup;
pub mod completion;
pub mod containers;
mod debug_dirs;
pub mod declaration;
mod decode;
pub mod error;
mod everyone;
mod files;
pub mod filter;
mod follow;
mod form;
mod group_by;
pub mod histogram;
pub mod inside;
mod library;
pub mod listing;
mod locals;
pub mod maps;
mod merged;
mod modules;
mod names;
mod own_threads;
mod pairing;
mod past;
mod place_values;
pub mod probes;
mod procfs;
pub mod progress;
pub mod prototypes;
mod quick;
pub mod recorded;
pub mod report;
mod requests;
mod roots;
pub mod saved;
mod session;
mod session_request;
mod sharers;
mod sites;
pub mod stacks;
pub mod summary;
pub mod system;
mod target;
mod threads;
mod times;
mod to_load;
mod traced;
mod tracers;
mod unwinders;
mod values;
pub mod watch;
mod why;

pub use builder::Builder;
pub use calls::Call;
pub use error::Error;
pub use form::Returns;
pub use histogram::Histogram;
pub use merged::merged;
pub use report::{By, Count, ProcessReport, Site, Times};
pub use session::{Finished, Running, Session};
pub use session_request::{CompactValues, ProbeAction};
pub use stacks::Unwinding;
pub use summary::Summary;
pub use target::Target;
/// [`Builder::probe`] parses one; parse it yourself (`text.parse()`) to look at its parts first.
pub use trapline_image::ProbeSpec;
/// A way to wait for Ctrl-C: [`Session::wait`] takes the first and returns the second.
pub use trapline_tracee::{Among, AmongError, Interrupt, Interrupts, remedy, withhold};
