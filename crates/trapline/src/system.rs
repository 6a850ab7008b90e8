//! The system that a tracer runs on: its clock, and the kernel's uprobes.
//!
//! In: nothing. Out: the time of day as reports show it; whether the kernel's uprobes are available, for
//! comparisons; whether a process numbers threads as the tracer does; what the machine permits a tracer;
//! which processes are busiest. Does not: trace.

pub use crate::everyone::Everyone;
pub use crate::threads::shares_numbers;
pub use trapline_tracee::{busiest, kernel, permitted, time_of_day};
