//! Which words of a program's memory may lead a thread into our code: any word that points there, since x30
//! may be saved anywhere.
//!
//! In: a word that is an address in a segment's code. Out: that it can. Does not: examine what lies around
//! it.

use trapline_tracee::Process;

use crate::memory::find::FoundSegment;
use crate::threads::still::Word;

/// Whether a word, an address in the segment's code, can lead a thread there.
pub(crate) const fn leads_into(_: &Word, _: &Process, _: &FoundSegment) -> bool {
    true
}
