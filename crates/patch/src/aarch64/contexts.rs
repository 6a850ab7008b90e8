//! Which words of a program's memory may lead a thread into our code: any word that points there, since x30
//! may be saved anywhere.
//!
//! In: a word that is an address in a segment's code. Out: that it can. Does not: examine what lies around
//! it.

use trapline_tracee::Process;

use crate::memory::find::FoundSegment;

/// A word, and what lies around it.
#[allow(dead_code, reason = "what is asked on x86-64")]
pub(crate) struct Word {
    pub(crate) at: u64,
    pub(crate) before: Option<u64>,
    pub(crate) value: u64,
    pub(crate) next: [Option<u64>; 2],
}

impl Word {
    /// Whether the word, an address in the segment's code, can lead a thread there.
    pub(crate) const fn leads_into(&self, _: &Process, _: &FoundSegment) -> bool {
        true
    }
}
