//! The system that a tracer runs on: its clock, and the kernel's uprobes.
//!
//! In: nothing. Out: the time of day as reports show it; whether the kernel's uprobes are available, for
//! comparisons. Does not: trace.

pub use trapline_tracee::{kernel, time_of_day};
