//! Recordings of everything: words of compact rings, read back as calls within calls.
//!
//! In: a file that [`Session::save`](crate::Session::save) wrote after
//! [`Builder::record_words`](crate::Builder::record_words), which may hold anything. Out: for each thread, its calls as they
//! begin and end ([`Visit`]), in the order of time over all threads. Invariants: REC-3 an entry is visited once, as a call
//! that begins and ends; the number of calls of a function is that of its entries in the file. REC-4 memory is bounded by
//! what two rounds of the file hold, and by the depth of calls. REC-5 the values of a call are those that its function had, or it
//! has none. (SAV-1, SAV-2) Does not: open files, or print.
//!
//! | part | what |
//! |---|---|
//! | `saved::blocks` | whole blocks of the file |
//! | `range` | which blocks and records are read, by time |
//! | `read` | blocks by kind; who is recorded; rounds |
//! | `streams` | the words of each ring, one after another; all rings in the order of time |
//! | `stacks` | entries and exits of a thread as calls |

mod example;
mod range;
mod read;
mod stacks;
mod streams;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::report::Site;

/// A function that was taken out of a recording while that ran.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TakenOut {
    /// Index of the function.
    pub function: usize,
    /// Its calls by then.
    pub calls: u64,
    /// The tick.
    pub at: u64,
    /// The share of the process' time that recording cost before.
    pub share: f64,
    /// Nanoseconds that a record took, as measured.
    pub record_ns: f64,
}

#[doc(hidden)]
pub use example::example;
#[cfg(test)]
pub(crate) use example::{context, record};
pub use read::Recorded;
pub use stacks::{Begun, Ended, Visit};

/// A recorded function of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Index of its process.
    pub process: usize,
    /// Its entry.
    pub site: Arc<Site>,
    /// Its exits are recorded.
    pub(crate) ends: bool,
    /// It is a library's, and is recorded because the program imports it.
    pub(crate) is_libcall: bool,
    /// The tick from which on its calls are not recorded, as far as was read.
    pub(crate) taken_out: Option<u64>,
}

/// A recorded thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Index of its process.
    pub process: usize,
    /// Its number.
    pub tid: u32,
}

/// A recorded process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// How ticks are times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ticks {
    /// Tick at which the recording began.
    pub start: u64,
    /// Nanoseconds of a tick.
    pub ns: f64,
}

impl Ticks {
    /// Nanoseconds of so many ticks.
    #[must_use]
    pub fn nanos(self, ticks: u64) -> u64 {
        (ticks as f64 * self.ns).round() as u64
    }
    /// Nanoseconds from the begin of the recording to a tick.
    #[must_use]
    pub fn since_begin(self, tick: u64) -> u64 {
        self.nanos(tick.saturating_sub(self.start))
    }
}

/// What was read so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Entries.
    pub calls: u64,
    /// Words, contexts included: eight bytes each.
    pub words: u64,
    /// Bytes of words that were passed over, since they are outside of what was asked for.
    pub passed: u64,
    /// Records that found their ring full, or no ring, as far as they are noted: entries and exits.
    pub lost: u64,
    /// Exits of calls that began before the recording, or whose entry was lost.
    pub unpaired: u64,
    /// Words that no session writes.
    pub skipped: u64,
}
