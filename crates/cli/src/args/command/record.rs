//! What `record`, and the verbs that show its recordings, ask for.
//!
//! In: plain values. Out: [`Record`], [`Shown`], [`Selection`]. Does not: open files.

use std::path::PathBuf;
use std::time::Duration;

use trapline::ProbeSpec;
use trapline::filter::Filter;

use super::run::{Ends, Run};
use super::types::Signature;

/// `record`, ready.
#[derive(Debug)]
pub(crate) struct Record {
    /// What to trace. Its sink is the file in the folder.
    pub(crate) run: Run,
    /// The same probes, with the types of the values that are recorded.
    pub(crate) probes: Vec<(ProbeSpec, Option<Signature>)>,
    /// What is read from memory for each probe; empty if nothing is.
    pub(crate) filters: Vec<Filter>,
    /// Whether functions that the program imports are recorded, too.
    pub(crate) libcalls: bool,
    /// The folder.
    pub(crate) dir: PathBuf,
    /// How the ends of calls are seen.
    pub(crate) ends: Ends,
    /// Whether threads wait for room.
    pub(crate) lossless: bool,
    /// Bytes of each CPU's buffer.
    pub(crate) buffer: u32,
    /// Functions that are not recorded: with fewer bytes of code than this, and these.
    pub(crate) least_bytes: u64,
    pub(crate) without: Vec<ProbeSpec>,
    /// The share of the program's time that recording may cost.
    pub(crate) budget: Option<f64>,
    /// What happens at calls of some functions when the recording is shown, as typed.
    pub(crate) triggers: Vec<String>,
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
    /// A long text goes through a pager.
    pub(crate) paged: bool,
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
    /// What happens at calls of some functions.
    pub(crate) triggers: Vec<Trigger>,
    /// What the recording itself asks for does not count.
    pub(crate) is_alone: bool,
    /// The threads; all if there is none.
    pub(crate) tids: Vec<u32>,
    /// Times since the begin of the recording, between which it is read.
    pub(crate) since: Duration,
    pub(crate) until: Option<Duration>,
}

impl Selection {
    /// With what a recording itself asks for.
    pub(crate) fn with(mut self, noted: Triggers) -> Self {
        if !self.is_alone {
            self.only.extend(noted.only);
            self.without.extend(noted.without);
            self.triggers.extend(noted.all);
        }
        self
    }
    /// Whether all calls that are read are shown.
    pub(crate) fn is_all(&self) -> bool {
        let lists = [&self.only, &self.without, &self.callers_of];
        lists.iter().all(|list| list.is_empty())
            && self.depth == usize::MAX
            && self.least.is_zero()
            && self.tids.is_empty()
            && self.triggers.is_empty()
    }
}

/// What triggers ask for.
#[derive(Debug, Default)]
pub(crate) struct Triggers {
    pub(crate) all: Vec<Trigger>,
    /// Functions that are also of `--filter`.
    pub(crate) only: Vec<ProbeSpec>,
    /// Functions that are also of `--notrace`.
    pub(crate) without: Vec<ProbeSpec>,
}

/// What happens when a function is called.
#[derive(Debug, Clone)]
pub(crate) struct Trigger {
    /// The function.
    pub(crate) function: ProbeSpec,
    /// So many levels are shown from this call on, until it ends.
    pub(crate) depth: Option<usize>,
    /// From now on calls are shown, or are not.
    pub(crate) shows: Option<bool>,
    /// Its callers are shown before it.
    pub(crate) backtrace: bool,
}

/// Two recordings that are compared.
#[derive(Debug)]
pub(crate) struct Diff {
    /// The folders.
    pub(crate) dirs: [PathBuf; 2],
    /// The calls that count.
    pub(crate) selection: Selection,
    /// What it is sorted by.
    pub(crate) sort: Sort,
    /// Both recordings' own sums are shown, too.
    pub(crate) full: bool,
    /// A long text goes through a pager.
    pub(crate) paged: bool,
}

/// What is shown of a recording.
#[derive(Debug)]
pub(crate) enum Form {
    /// `replay`: calls as they happened.
    Replay(Fields),
    /// `report`: a line for each function.
    Report {
        /// Their order.
        sort: Sort,
        /// Each as a JSON object.
        json: bool,
    },
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

/// What stands before each line of `replay`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Time since the begin of the recording.
    pub(crate) elapsed: bool,
    /// Time from entry to return.
    pub(crate) duration: bool,
    /// The thread.
    pub(crate) tid: bool,
}

impl Fields {
    /// Nothing.
    pub(crate) const NONE: Self = Self { elapsed: false, duration: false, tid: false };
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
