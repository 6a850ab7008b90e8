//! Hardware breakpoints of other tasks as perf events that write samples into shared rings.
//!
//! Input: thread ids, addresses, what to sample. Output: the kernel's records as bytes, one ring for each
//! CPU. Invariants: PRF-1 every event ends with the value that owns it, whatever fails on the way; PRF-2 no
//! task is stopped or signalled, since events are opened on running tasks. Does not: parse records, choose
//! threads, or know which debug registers are free.

pub mod breakpoint;
mod cpus;
mod mappings;
mod program;
mod sampled;
mod tasks;

pub use crate::regs::USER_REGS;
pub use breakpoint::Access;
pub use cpus::NotArmed;
pub use mappings::{MappingRecord, MappingRings};
pub use sampled::{Armed, Breakpoint, DEBUG_REGISTERS, Family, SampleOptions, SampleRings};
pub use tasks::{Followed, TaskRings};

use std::time::Duration;

/// The time on CLOCK_MONOTONIC in nanoseconds. All samples use this clock.
#[must_use]
pub fn monotonic_ns() -> u64 {
    crate::sys::own::monotonic().as_nanos() as u64
}

/// Raises the limit of descriptors by `more`; returns how many there may be now.
///
/// # Errors
/// When the limit cannot be read or set.
pub fn allow_files(more: u64) -> std::io::Result<u64> {
    crate::sys::limit::raise(more)
}

/// The calling thread's number.
#[must_use]
pub fn this_thread() -> u32 {
    crate::sys::own::thread_id()
}

/// CPU time of the calling thread.
#[must_use]
pub fn thread_time() -> Duration {
    crate::sys::own::thread_time()
}

/// Returns once every CPU has left the interrupt or trap handler that it was in. It uses
/// MEMBARRIER_CMD_GLOBAL: a grace period of the kernel's RCU, some milliseconds.
///
/// # Errors
/// When the kernel does not offer it.
pub fn wait_for_handlers() -> std::io::Result<()> {
    crate::sys::own::global_barrier()
}

/// The number of CPUs that can ever come online.
#[must_use]
pub fn possible_cpus() -> u32 {
    crate::process::possible_cpus()
}
