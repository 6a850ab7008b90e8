//! What attaching and detaching cost, and what they left behind.

use std::time::Duration;

use trapline_patch::{AttachReport, Memory};
use trapline_tracee::BatchReport;

use crate::summary::Summary;

/// What attaching and detaching cost, and what they left behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    pub(super) attach: Duration,
    pub(super) detach: Duration,
    pub(super) longest_stop: Duration,
    pub(super) interrupted: u64,
    pub(super) restarted: u64,
    pub(super) guards: u64,
    pub(super) left_mapped: u64,
    pub(super) memory: Memory,
    pub(super) foreign_sites: u64,
    /// Processes, this one or its children, in which more than memory stays: patches or a signal handler.
    pub(super) undone: u64,
}

impl Costs {
    /// Totals in which only these costs are filled in.
    pub(super) fn totals(&self) -> Summary {
        Summary {
            interrupted_syscalls: self.interrupted,
            restarted_timeouts: self.restarted,
            longest_stop: self.longest_stop,
            attach_time: self.attach,
            detach_time: self.detach,
            memory_sites: self.memory.sites,
            memory_per_cpu: self.memory.per_cpu,
            left_mapped: self.left_mapped,
            foreign_sites: self.foreign_sites,
            undone: self.undone,
            ..Summary::default()
        }
    }
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
