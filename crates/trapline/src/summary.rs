//! Totals of a whole session.
//!
//! In: the totals of each process, at its end. Out: one [`Summary`], shown by a report's last lines. Does
//! not: count.

use std::time::Duration;

use crate::report::{Filtered, Refused, Tactic, Unprobed};

/// Number of sites by tactic.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ByTactic(pub [u64; Tactic::ALL.len()]);

impl ByTactic {
    /// Counts one more site.
    pub const fn add(&mut self, tactic: Tactic) {
        self.0[tactic as usize] += 1;
    }
    /// Sites with any tactic.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
    /// Tactics in use with their number of sites, preferred ones first.
    pub fn iter(&self) -> impl Iterator<Item = (Tactic, u64)> + '_ {
        Tactic::ALL.iter().map(|&tactic| (tactic, self.0[tactic as usize])).filter(|&(_, n)| n > 0)
    }
}

/// Sites that another tool changed while they were probed. Hits there are not seen during that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Overwritten {
    /// Number of sites.
    pub sites: u64,
    /// Longest time for which one of them may have been changed.
    pub longest: Duration,
}

/// Totals of a whole session, at its end: [`Finished::summary`](crate::Finished::summary).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Summary {
    /// Processes that were probed.
    pub processes: u64,
    /// Of these, processes that had ended, or ran another program, before the tracer detached.
    pub ended: u64,
    /// Of the ended ones that the user named, those that were killed: see
    /// [`Ended::Killed`](crate::report::Ended::Killed).
    pub killed: u64,
    /// Forked children that counted into their parent's table.
    pub children: u64,
    /// Sites that the probes mean, in all processes.
    pub matched: u64,
    /// Sites that are probed, by tactic.
    pub patched: ByTactic,
    /// Sites that are not probed.
    pub refused: Vec<Refused>,
    /// Processes that are not probed as a whole: their batch failed, or they could not be looked at.
    pub unprobed: Vec<Unprobed>,
    /// Hits recorded.
    pub hits: u64,
    /// Hits that could not be recorded.
    pub missed: u64,
    /// Hits that a filter kept out.
    pub filtered: Option<Filtered>,
    /// See [`ProcessReport::interrupted_syscalls`](crate::report::ProcessReport::interrupted_syscalls).
    pub interrupted_syscalls: u64,
    /// See [`ProcessReport::restarted_timeouts`](crate::report::ProcessReport::restarted_timeouts).
    pub restarted_timeouts: u64,
    /// Threads that were inside a window and were sent on: by the tracer, or by the trap handler in the
    /// process.
    pub guard_traps: u64,
    /// Longest time that any thread was stopped.
    pub longest_stop: Duration,
    /// Time from known offsets to the last patch, including the map of branch targets; summed over all
    /// processes.
    pub attach_time: Duration,
    /// Time that detaching took.
    pub detach_time: Duration,
    /// Bytes of the processes' memory that the sites took: code, journal and guards.
    pub memory_sites: u64,
    /// Bytes for counters and latency areas, for each CPU that hits them.
    pub memory_per_cpu: u64,
    /// Bytes of address space for code and data that stay mapped in processes that still run.
    pub left_mapped: u64,
    /// Bytes of memory behind that address space.
    pub left_resident: u64,
    /// Sites that no longer held this tracer's patch at the detach, and were left alone.
    pub foreign_sites: u64,
    /// Sites that another tool changed for a time while they were probed.
    pub overwritten: Overwritten,
    /// Processes in which patches or a signal handler stay behind. The notices name them and the reason.
    pub undone: u64,
    /// Things that went wrong without ending the session.
    pub notices: Vec<String>,
}

impl Summary {
    /// Adds the totals of another process.
    pub(crate) fn add(&mut self, more: &Self) {
        self.processes += more.processes;
        self.ended += more.ended;
        self.killed += more.killed;
        self.children += more.children;
        self.matched += more.matched;
        self.patched.0.iter_mut().zip(more.patched.0).for_each(|(sum, sites)| *sum += sites);
        self.refused.extend_from_slice(&more.refused);
        self.unprobed.extend_from_slice(&more.unprobed);
        self.hits += more.hits;
        self.missed += more.missed;
        if let Some(more) = more.filtered {
            let sum = self.filtered.get_or_insert_default();
            sum.in_target += more.in_target;
            sum.by_reader += more.by_reader;
            sum.unended += more.unended;
        }
        self.interrupted_syscalls += more.interrupted_syscalls;
        self.restarted_timeouts += more.restarted_timeouts;
        self.guard_traps += more.guard_traps;
        self.longest_stop = self.longest_stop.max(more.longest_stop);
        self.attach_time += more.attach_time;
        self.detach_time += more.detach_time;
        self.memory_sites += more.memory_sites;
        self.memory_per_cpu += more.memory_per_cpu;
        self.left_mapped += more.left_mapped;
        self.left_resident += more.left_resident;
        self.foreign_sites += more.foreign_sites;
        self.overwritten.sites += more.overwritten.sites;
        self.overwritten.longest = self.overwritten.longest.max(more.overwritten.longest);
        self.undone += more.undone;
        self.notices.extend_from_slice(&more.notices);
    }
}
