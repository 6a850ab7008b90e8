//! A bell that any thread of this process, or a signal handler in it, can ring to wake a thread that polls.
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
    /// Makes a bell that has not rung.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> io::Result<Self> {
        fd::event().map(Self)
    }
    /// Wakes the thread that polls. Async-signal-safe; preserves errno.
    pub fn ring(&self) {
        fd::add_event(self.0.as_fd());
    }
    /// Returns whether it rang, and clears it.
    pub fn clear(&self) -> bool {
        fd::take_event(self.0.as_fd())
    }
    /// Its descriptor, readable while it has rung.
    pub(crate) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
    /// Waits until it rings, or until one of these descriptors is readable; at most `at_most`, or without
    /// limit.
    pub fn wait(&self, others: &[i32], at_most: Option<Duration>) {
        let all: Vec<i32> = others.iter().copied().chain([self.0.as_raw_fd()]).collect();
        perf::wait_for(&all, at_most);
    }
}
