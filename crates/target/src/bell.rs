//! A bell that any thread of this process, or a signal handler in it, can ring for one who polls.
//!
//! In: rings. Out: whether it rang since it was cleared. Does not: count.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use crate::sys::{fd, perf};

/// An eventfd.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// One that has not rung.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        fd::event().map(Self)
    }
    /// Wakes whoever polls. Async-signal-safe; leaves errno alone.
    pub fn ring(&self) {
        fd::add_event(self.0.as_fd());
    }
    /// Whether it rang; from now on it has not.
    pub fn clear(&self) -> bool {
        fd::take_event(self.0.as_fd())
    }
    /// Waits until it rings, or one of these descriptors is readable; for good, or at most so long.
    pub fn wait(&self, others: &[i32], at_most: Option<Duration>) {
        let all: Vec<i32> = others.iter().copied().chain([self.0.as_raw_fd()]).collect();
        perf::wait_for(&all, at_most);
    }
}
