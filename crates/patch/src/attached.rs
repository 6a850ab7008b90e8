//! What a session holds of one process: its segments, and the handler that serves guard traps there.
//!
//! In: segments as they are made. Out: where a trapped thread goes on; the memory to read counts from. It can be read
//! after the process ended.
//! Does not: touch the process.

use trapline_plan::{RseqTraits, ThreadId};
use trapline_target::{FileId, Handler};

use crate::segment::Segment;

/// The handler of the first segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Installed {
    pub(crate) entry: u64,
    pub(crate) restorer: u64,
    /// The SIGTRAP action that we set.
    pub(crate) trap: Option<Handler>,
    /// The SIGILL action that we set.
    pub(crate) illegal: Option<Handler>,
}

/// Patches in place in one process.
#[derive(Debug, Default)]
pub struct Attached {
    pub(crate) segments: Vec<Segment>,
    pub(crate) guards: Vec<(u64, u64)>,
    pub(crate) installed: Option<Installed>,
    /// Asked of a stopped thread once; then: whether threads have rseq areas, and where.
    pub(crate) rseq: Option<Option<RseqTraits>>,
    /// How a thread's number is learnt; asked together with `rseq`.
    pub(crate) thread_id: ThreadId,
    pub(crate) clock_allowed: bool,
}

impl Attached {
    /// Its segments, oldest first: one for each batch that placed a patch.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// Where a thread that trapped at `addr` goes on, if that is one of our guards.
    #[must_use]
    pub fn resume(&self, addr: u64) -> Option<u64> {
        resume(&self.guards, addr)
    }
    /// Whether counter lines belong to CPUs: threads have rseq areas. Otherwise any line may have been used by any CPU.
    #[must_use]
    pub fn counts_by_cpu(&self) -> bool {
        self.rseq.flatten().is_some()
    }
    /// Whether counting by thread takes a system call at each hit.
    #[must_use]
    pub fn asks_for_thread(&self) -> bool {
        self.thread_id == ThreadId::Call
    }
    /// Bytes of address space taken in the process.
    #[must_use]
    pub fn mapped(&self) -> u64 {
        self.segments.iter().map(Segment::mapped).sum()
    }
    pub(crate) fn memfds(&self) -> Vec<FileId> {
        self.segments.iter().map(Segment::memfd).collect()
    }
    pub(crate) fn push(&mut self, segment: Segment) {
        self.guards.extend_from_slice(&segment.guards);
        self.guards.sort_unstable();
        self.segments.push(segment);
    }
}

/// Looks an address up in a sorted guard table.
pub(crate) fn resume(guards: &[(u64, u64)], addr: u64) -> Option<u64> {
    let found = guards.binary_search_by_key(&addr, |g| g.0).ok()?;
    Some(guards[found].1)
}
