//! What the batches of a session have left in one process: segments, the handler that serves guard traps
//! there, published patches, and what is known of threads and facts.
//!
//! In: segments as they are made. Out: where a trapped thread goes on; what the next batch has to respect.
//! Does not: touch the process.

use trapline_plan::Patch;
use trapline_record::control::at;
use trapline_record::trampolines::Trampolines;
use trapline_tracee::{FileId, ThreadStatus};

use crate::held::Held;
use crate::install::handler::Installed;
use crate::memory::segment::{MadeTrampolines, Segment, resume};
use crate::remove::facts::Facts;
use crate::signals::SIGTRAP;
use crate::threads::known::KnownThreads;

/// What earlier batches have placed in a process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before<'a> {
    pub(crate) held: &'a [Patch],
    pub(crate) trampolines: Option<Trampolines>,
}

/// All batches of a session in one process.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    /// Oldest first. Each batch that placed a patch has one.
    pub(crate) segments: Vec<Segment>,
    /// The guards of all segments, sorted.
    pub(crate) guards: Vec<(u64, u64)>,
    /// The handler that the first segment holds.
    pub(crate) installed: Option<Installed>,
    /// The process serves its traps itself, so no handler of ours is installed.
    pub(crate) serves_itself: bool,
    pub(crate) threads: KnownThreads,
    pub(crate) facts: Facts,
    /// The program catches faults, and its handlers see the original addresses of those in copies.
    pub(crate) delivers: bool,
    pub(crate) held: Held,
    /// Threads that load libraries wait (`loading`).
    pub(crate) holds_loads: bool,
    /// Return trampolines of the process, once a segment brought them.
    pub(crate) trampolines: Option<Trampolines>,
    /// Return trampolines that our own process has outside its segments.
    pub(crate) own_trampolines: Option<MadeTrampolines>,
    /// The last publication did not complete.
    pub(crate) is_unfinished: bool,
    /// Number of bytes that may be charged to the process, by what its group had left; `None` if it has no
    /// limit.
    pub(crate) may_grow: Option<u64>,
    /// Segments of the process from which this one was forked; only in our own process.
    pub(crate) inherited: Vec<FileId>,
}

impl Batches {
    /// Where a thread that trapped at `addr` goes on, if that is one of our guards.
    pub(crate) fn resume(&self, addr: u64) -> Option<u64> {
        resume(&self.guards, addr)
    }
    /// What a plan has to respect.
    pub(crate) fn before(&self) -> Before<'_> {
        Before { held: self.held.all(), trampolines: self.trampolines }
    }
    /// The files of all segments that are this session's.
    pub(crate) fn memfds(&self) -> Vec<FileId> {
        self.segments.iter().map(Segment::memfd).chain(self.inherited.iter().copied()).collect()
    }
    pub(crate) fn push(&mut self, segment: Segment) {
        self.trampolines = self.trampolines.or(segment.trampolines.map(|made| made.trampolines));
        if !self.guards.is_empty() {
            self.guards.retain(|guard| resume(&segment.guards, guard.0).is_none());
        }
        self.guards.extend_from_slice(&segment.guards);
        self.guards.sort_by_key(|&guard| guard);
        self.segments.push(segment);
    }
    /// Where windows were taken out and are patched anew: guards of earlier segments lead to the new copies. Done
    /// before the first of the new windows is published, so no thread traps there meanwhile.
    pub(crate) fn redirect_guards(&mut self, segment: &Segment) {
        for &(addr, to) in &segment.guards {
            for earlier in &mut self.segments {
                earlier.redirect_guard(addr, to);
            }
        }
    }
    /// The segment that brought the process' return trampolines.
    pub(crate) fn with_trampolines(&self) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.trampolines.is_some())
    }
    /// Whether we catch faults.
    pub(crate) fn take_faults(&self) -> bool {
        self.installed.is_some_and(|installed| installed.faults().iter().any(Option::is_some))
    }
    /// Whether the program had a handler of its own for SIGTRAP when we came (PATCH-15).
    pub(crate) fn is_trap_the_programs(&self, status: &ThreadStatus) -> bool {
        match (&self.installed, self.segments.first()) {
            (Some(installed), Some(first)) if installed.trap().is_some() => {
                first.view().get(at::OLD_SIGTRAP) > 1
            }
            _ => ThreadStatus::has(status.caught, SIGTRAP),
        }
    }
    /// Shows stubs for which facts no thread waits.
    pub(crate) fn say_closed(&self) {
        let closed = self.facts.closed();
        for segment in &self.segments {
            segment.view().set(at::CLOSED, closed);
        }
    }
}
