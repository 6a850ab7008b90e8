//! What `record`, and the verbs that show its recordings, ask for.
//!
//! In: plain values. Out: [`Record`], [`Shown`]. Does not: open files.

use std::path::PathBuf;

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
    /// What is shown.
    pub(crate) form: Form,
}

/// What is shown of a recording.
#[derive(Debug)]
pub(crate) enum Form {
    /// `replay`: calls as they happened.
    Replay {
        /// Number of levels.
        depth: usize,
        /// The one thread.
        tid: Option<u32>,
    },
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
    /// `dump --flame FILE`: a picture of folded stacks.
    Picture {
        /// Where to; `None`: to standard output.
        output: Option<PathBuf>,
        /// What the numbers are.
        unit: String,
    },
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
