//! What attaching and detaching cost, and what they left behind.

use std::time::Duration;

use trapline_patch::{AttachReport, Memory};
use trapline_tracee::BatchReport;

/// What attaching and detaching cost, and what they left behind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) attach: Duration,
    pub(crate) detach: Duration,
    pub(crate) longest_stop: Duration,
    pub(crate) interrupted: u64,
    pub(crate) restarted: u64,
    pub(crate) guards: u64,
    pub(crate) left_mapped: u64,
    pub(crate) memory: Memory,
    pub(crate) foreign_sites: u64,
    /// Processes, this one or its children, in which more than memory stays: patches or a signal handler.
    pub(crate) undone: u64,
}

impl Costs {
    pub(super) fn add_attach(&mut self, report: &AttachReport) {
        self.add(&report.batch);
        self.memory.sites += report.memory.sites;
        self.memory.per_cpu += report.memory.per_cpu;
    }
    pub(super) fn add(&mut self, batch: &BatchReport) {
        self.longest_stop = self.longest_stop.max(batch.longest_stop);
        self.interrupted += batch.interrupted_syscalls;
        self.restarted += batch.restarted_timeouts;
        self.guards += batch.guards;
    }
}
