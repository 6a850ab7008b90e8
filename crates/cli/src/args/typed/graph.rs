//! `graph`, as clap reads it.

use std::path::PathBuf;

use clap::Args;

use super::help::{TRACED, sections};
use super::selection::TypedSelection;
use super::shared::{Common, TypedEnds};

/// The call tree below a function, with durations
///
/// Shows what FUNC calls, how often, and how long that took. Entries and exits of FUNC and BELOW are recorded
/// and put together, thread by thread. Functions with unknown exits are left out; what they call stands where
/// they would. All functions of a large program are many records: name some.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedGraph {
    /// Show the tree of what trapline record wrote into DIR, instead of tracing
    #[arg(long, value_name = "DIR", help_heading = "Tree", conflicts_with_all = LIVE)]
    pub(crate) from: Option<PathBuf>,
    /// The function at the root, for example processCommand
    #[arg(value_name = "FUNC", required = true)]
    pub(crate) root: String,
    /// Functions below it, for example 'lookup*' 'libc:mem*' [default: all of the same file]
    #[arg(value_name = "BELOW")]
    pub(crate) below: Vec<String>,
    /// Print each call by itself, with what it called, instead of the sums
    #[arg(long, help_heading = "Tree")]
    pub(crate) each: bool,
    /// Show only N levels below FUNC
    #[arg(long, value_name = "N", help_heading = "Tree")]
    pub(crate) depth: Option<usize>,
    #[command(flatten)]
    pub(crate) selection: TypedSelection,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What is of no use to a recording.
const LIVE: [&str; 24] = [
    "below",
    "pids",
    "names",
    "command",
    "words",
    "follow",
    "wait",
    "groups",
    "containers",
    "users",
    "roots",
    "each",
    "ret",
    "maxactive",
    "interval",
    "duration",
    "timestamps",
    "json",
    "output",
    "quiet",
    "dry_run",
    "strict",
    "faults_are_fatal",
    "kernel_uprobes",
];

const MORE: &str = "\
What it prints:
  16.702 ms : | `-(1228880) tax
  Time of all calls at this place in the tree together, with all that they
  called; how many calls; the function, below the one that called it.
  With --each, every call by itself, when it has ended.

Examples:
  All functions of the same file below a function:
    trapline graph -d 1 -p PID handle
  Only some, and some of a library:
    trapline graph -d 1 -p PID handle price store libc:malloc libc:free
  What a function calls itself:
    trapline graph --depth 1 -d 3 -p PID processCommand
  Of a recording of everything:
    trapline graph --from calls handle
  A library's own calls, in a command:
    trapline graph libsqlite3:sqlite3_exec 'libsqlite3:sqlite3_*' \\
      -- sqlite3 :memory: 'select 1+1'";
