//! Hardware breakpoints of other tasks as perf events that write samples into shared rings.
//!
//! Input: thread ids, addresses, what to sample. Output: the kernel's records as bytes, one ring for each CPU. Invariants:
//! PRF-1 every event ends with the value that stands for it, whatever fails on the way; PRF-2 no task is stopped or
//! signalled: events are opened on running tasks. Does not: understand records, choose threads, know slots.

pub mod breakpoint;
mod mappings;
mod program;
mod sampled;
mod tasks;

pub use mappings::{MappingRings, Told};
pub use sampled::{
    Access, Armed, Breakpoint, Family, NotArmed, SLOTS, SampleOptions, SampleRings, USER_REGS,
};
pub use tasks::{Followed, TaskRings};

use std::time::Duration;

/// CLOCK_MONOTONIC in nanoseconds, the clock of all samples.
#[must_use]
pub fn monotonic_ns() -> u64 {
    crate::sys::clock::monotonic().as_nanos() as u64
}

/// Makes room for so many descriptors; gives how many there may be now.
///
/// # Errors
/// When the limit cannot be read or set.
pub fn allow_files(more: u64) -> std::io::Result<u64> {
    crate::sys::limit::raise(more)
}

/// The calling thread's number.
#[must_use]
pub fn this_thread() -> u32 {
    crate::sys::clock::thread_id()
}

/// CPU time of the calling thread.
#[must_use]
pub fn thread_time() -> Duration {
    crate::sys::clock::thread_time()
}

/// Returns once every CPU has left the interrupt or trap handler that it was in (MEMBARRIER_CMD_GLOBAL: a grace period of the
/// kernel's RCU, some milliseconds).
///
/// # Errors
/// When the kernel does not offer it.
pub fn wait_for_handlers() -> std::io::Result<()> {
    crate::sys::barrier::global()
}

/// How many CPUs may ever come on.
#[must_use]
pub fn possible_cpus() -> u32 {
    crate::process::possible_cpus()
}
