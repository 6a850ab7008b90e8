//! What a batch is asked to report, and the sums that it reports.
//!
//! Input: nothing. Output: plain values. Does not: count anything by itself.

use std::time::Duration;

use crate::remote_options::RemoteReport;

/// Which events a batch reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchOptions {
    /// Hold forked children at their first stop until [`Batch::release`](crate::Batch::release). Without this
    /// they are detached at once.
    pub hold_children: bool,
}

/// An event that the caller of a batch must handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A child process was born and is held at its first stop, if children are held.
    Forked {
        /// The process that forked.
        parent: u32,
        /// The child's pid.
        child: u32,
        /// It runs in its parent's memory (vfork, clone with CLONE_VM), so there is nothing to patch. Such a
        /// child is never held.
        shares_memory: bool,
    },
    /// A process runs another program now; nothing of ours is left in it.
    Exec {
        /// Its pid.
        pid: u32,
    },
    /// A process has ended, with its wait status.
    Exited {
        /// Its pid.
        pid: u32,
        /// The status as `wait` gives it.
        status: i32,
    },
}

/// What one call of [`Batch::serve`](crate::Batch::serve) did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Guard traps after which the thread was sent on.
    pub guards: u32,
    /// Signals that were passed on.
    pub signals: u32,
    /// Births of threads.
    pub threads: u32,
}

/// What a stop of all threads cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StopReport {
    /// Threads stopped.
    pub threads: u32,
    /// Calls that returned EINTR to the program because of the tracer.
    pub interrupted: u32,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u32,
    /// Time from the first order to stop to the last release.
    pub longest: Duration,
}

/// Totals of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchReport {
    /// Guard traps after which the thread was sent on.
    pub guards: u64,
    /// Guard traps after which a reset SIGTRAP action and mask were put back.
    pub dispositions_restored: u64,
    /// Signals that were passed on.
    pub signals: u64,
    /// Threads seized.
    pub threads: u64,
    /// Calls that returned EINTR to the program because of the tracer. 0 unless a repair was impossible.
    pub interrupted_syscalls: u64,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u64,
    /// Longest time that a thread was stopped, from our order to its release.
    pub longest_stop: Duration,
    /// Time for which threads were stopped for remote calls, in total.
    pub remote_stop: Duration,
}

impl BatchReport {
    pub(super) fn add_served(&mut self, served: Served) {
        self.guards += u64::from(served.guards);
        self.signals += u64::from(served.signals);
    }
    pub(super) fn add_stop(&mut self, stop: &StopReport) {
        self.longest_stop = self.longest_stop.max(stop.longest);
        self.interrupted_syscalls += u64::from(stop.interrupted);
        self.restarted_timeouts += u64::from(stop.restarted_timeouts);
    }
    pub(super) fn add_remote(&mut self, remote: &RemoteReport) {
        self.interrupted_syscalls += u64::from(remote.interrupted);
        self.restarted_timeouts += u64::from(remote.restarted_timeout);
        self.add_remote_stop(remote.stopped);
    }
    pub(super) fn add_remote_stop(&mut self, stopped: Duration) {
        self.remote_stop += stopped;
        self.longest_stop = self.longest_stop.max(stopped);
    }
}
