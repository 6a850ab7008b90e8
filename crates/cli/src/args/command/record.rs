//! What `record`, and the verbs that show its recordings, ask for.
//!
//! In: plain values. Out: [`Record`], [`Shown`], [`Selection`]. Does not: open files.

use std::path::PathBuf;
use std::time::Duration;

use trapline::ProbeSpec;

use super::run::{Ends, Run};

/// `record`, ready.
#[derive(Debug)]
pub(crate) struct Record {
    /// What to trace. Its sink is the file in the folder.
    pub(crate) run: Run,
    /// The folder.
    pub(crate) dir: PathBuf,
    /// How the ends of calls are seen.
    pub(crate) ends: Ends,
    /// Whether threads wait for room.
    pub(crate) lossless: bool,
    /// Bytes of each CPU's buffer.
    pub(crate) buffer: u32,
}

/// A recording, and what is shown of it.
#[derive(Debug)]
pub(crate) struct Shown {
    /// The folder.
    pub(crate) dir: PathBuf,
    /// The calls that are shown.
    pub(crate) selection: Selection,
    /// What is shown.
    pub(crate) form: Form,
}

/// Which calls are shown. An empty list asks for nothing.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    /// Only calls of these functions, and what is within them.
    pub(crate) only: Vec<ProbeSpec>,
    /// No calls of these functions, and nothing within them.
    pub(crate) without: Vec<ProbeSpec>,
    /// Only calls of these functions, and those that they are within.
    pub(crate) callers_of: Vec<ProbeSpec>,
    /// Number of levels; behind a call of `only`, it begins again.
    pub(crate) depth: usize,
    /// Least duration.
    pub(crate) least: Duration,
    /// The threads; all if there is none.
    pub(crate) tids: Vec<u32>,
}

impl Selection {
    /// Whether nothing is left out.
    pub(crate) fn is_all(&self) -> bool {
        let lists = [&self.only, &self.without, &self.callers_of];
        lists.iter().all(|list| list.is_empty())
            && self.depth == usize::MAX
            && self.least.is_zero()
            && self.tids.is_empty()
    }
}

/// What is shown of a recording.
#[derive(Debug)]
pub(crate) enum Form {
    /// `replay`: calls as they happened.
    Replay,
    /// `report`: a line for each function.
    Report(Sort),
    /// `graph --from`: the tree below a function.
    Graph {
        /// The function.
        root: String,
        /// Number of levels below it.
        depth: usize,
    },
    /// `dump --chrome`: a timeline, into a file or to standard output.
    Chrome(Option<PathBuf>),
    /// `dump --flame`: folded stacks.
    Flame(Option<PathBuf>),
}

/// What a report is sorted by; the most first, but names in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Total time.
    Total,
    /// Own time.
    Own,
    /// Calls.
    Calls,
    /// Names.
    Name,
}
