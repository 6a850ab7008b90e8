//! Threads that the C library did not make, where stubs rely on the number that it keeps.
//!
//! In: the process' threads, at each look. Out: a notice at the first such thread. Attaching checks all
//! threads that exist then; this finds those made later. Does not: change what is counted.

use std::collections::HashSet;

use trapline_patch::Attached;
use trapline_tracee::Process;

/// Threads that were seen.
#[derive(Debug, Default)]
pub(super) struct Births {
    /// Threads at the last look.
    known: HashSet<u32>,
    /// Those that the C library did not make.
    strangers: HashSet<u32>,
}

impl Births {
    /// Looks at the threads that are new. Returns a notice about the first that the C library did not make.
    pub(super) fn look(&mut self, process: &Process, attached: &mut Attached) -> Option<String> {
        if attached.segments().is_empty() {
            return None;
        }
        let threads: HashSet<u32> = process.threads().ok()?.into_iter().collect();
        if threads.is_subset(&self.known) {
            return None;
        }
        let strangers = attached.strangers(process).ok()?;
        self.known = threads;
        let mut notice = None;
        for tid in strangers {
            if self.strangers.insert(tid) && self.strangers.len() == 1 {
                notice = Some(format!(
                    "thread {tid} of process {} was made without the C library while it was probed, and shares another thread's \
                     control block or has none: hits may be lost from then on, so the counts are lower bounds; attach again, and \
                     it is counted exactly",
                    process.pid()
                ));
            }
        }
        notice
    }
}
