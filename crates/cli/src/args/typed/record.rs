//! `record`, `replay`, `report` and `dump`, as clap reads them.

use std::path::PathBuf;

use clap::{ArgGroup, Args, ValueEnum};

use super::help::{ONCE, TRACED, sections};
use super::once::TypedPager;
use super::selection::{TypedDepth, TypedSelection};
use super::shared::{TypedEnds, TypedPatching, TypedTarget};

/// Record every call of a whole program, and look later
///
/// Records entry and return of functions with time and thread, and nothing else: 16 bytes a call. trapline report,
/// replay, graph and dump show the recording. A record that finds the buffer of its CPU full is dropped, and counted as missed;
/// with --lossless the program waits instead.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(RECORD, TRACED))]
pub(crate) struct TypedRecord {
    /// Functions to record, for example 'store*' 'libc:open(str path, int flags) -> int' [default: all of the program]
    #[arg(value_name = "PROBE")]
    pub(crate) probes: Vec<String>,
    #[command(flatten)]
    pub(crate) target: TypedTarget,
    /// Folder for the recording
    #[arg(short, long, value_name = "DIR", default_value = DIR, help_heading = "Recording")]
    pub(crate) output: PathBuf,
    /// Let a thread wait for room in a full buffer, so that no call is lost.
    ///
    /// A thread waits for at most a second while trapline takes nothing, as when it was killed or stopped. Then no thread waits
    /// until trapline goes on; calls that are lost meanwhile are counted.
    #[arg(long, help_heading = "Recording")]
    pub(crate) lossless: bool,
    /// Bytes of each CPU's buffer, with K, M or G after the number, up to 1G
    #[arg(long, value_name = "SIZE", default_value = "16M", help_heading = "Recording")]
    pub(crate) buffer: String,
    /// Do not record functions with less than BYTES of code; with K or M after the number. Their calls cost nothing
    #[arg(short = 'Z', long, value_name = "BYTES", help_heading = "Recording")]
    pub(crate) size_filter: Option<String>,
    /// Do not record this function, though PROBE means it; may be given more than once
    #[arg(short = 'U', long, value_name = "FUNC", help_heading = "Recording")]
    pub(crate) unpatch: Vec<String>,
    /// Record arguments and returned values of all PROBEs, by their debug information.
    ///
    /// Without it, those of PROBEs with a signature are recorded.
    #[arg(short, long, help_heading = "Recording")]
    pub(crate) auto_args: bool,
    /// Record calls from the program into its libraries, too: of all functions that it imports.
    ///
    /// replay and the other verbs show those calls of them that are not within another one: what libraries call among themselves is
    /// not shown.
    #[arg(long, help_heading = "Recording")]
    pub(crate) libcall: bool,
    /// Let recording cost no more than this share of the program's time, such as 5%, as far as that can be.
    ///
    /// Functions that call no recorded one are taken out while it runs, those that are called most first. A table at the end says
    /// which and from when, and so does trapline info. What a record costs is measured while it runs.
    #[arg(long, value_name = "PERCENT", help_heading = "Recording")]
    pub(crate) budget: Option<String>,
    /// Do something at calls of FUNC: trace_on, trace_off, depth=N, backtrace, filter, notrace; may be given more than once.
    ///
    /// The recording notes it, and all verbs that show calls do it, as if it was given there; --all-calls turns that off. Calls are
    /// recorded all the same: a call whose exit was left out would seem to go on.
    #[arg(short = 'T', long, value_name = "FUNC@ACTION[,ACTION]", help_heading = "Recording")]
    pub(crate) trigger: Vec<String>,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    /// Stop after this time: seconds, or with a unit (500ms, 2m)
    #[arg(short, long, value_name = "SECONDS", help_heading = "Recording")]
    pub(crate) duration: Option<String>,
    /// Print no closing summary and no notices
    #[arg(short, long, help_heading = "Recording")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) patching: TypedPatching,
}

/// Name of the folder if none is given.
const DIR: &str = "trapline.data";

/// Show the calls of a recording, as they happened
///
/// Prints a line when a call begins and when it ends, with its duration and thread, indented by depth: as uftrace replay does. A
/// call without calls within it is one line.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(REPLAY, ONCE))]
pub(crate) struct TypedReplay {
    /// Folder of the recording
    #[arg(value_name = "DIR", default_value = DIR)]
    pub(crate) dir: PathBuf,
    /// What stands before each call
    #[arg(short = 'f', long = "output-fields", value_name = "FIELD", value_enum, value_delimiter = ',', default_values = ["duration", "tid"])]
    pub(crate) fields: Vec<TypedField>,
    #[command(flatten)]
    pub(crate) depth: TypedDepth,
    #[command(flatten)]
    pub(crate) selection: TypedSelection,
    #[command(flatten)]
    pub(crate) pager: TypedPager,
}

/// Show calls, total time and own time of each function of a recording
///
/// The calls of a function are those that trapline count would count, if none was missed.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(REPORT, ONCE))]
pub(crate) struct TypedReport {
    /// Folder of the recording
    #[arg(value_name = "DIR", default_value = DIR)]
    pub(crate) dir: PathBuf,
    /// What to sort by
    #[arg(short, long, value_name = "KEY", value_enum, default_value = "total")]
    pub(crate) sort: TypedSort,
    /// Print a JSON object for each function
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) depth: TypedDepth,
    #[command(flatten)]
    pub(crate) selection: TypedSelection,
    #[command(flatten)]
    pub(crate) pager: TypedPager,
}

/// `--output-fields`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypedField {
    /// Seconds since the begin of the recording, as --since takes them
    Elapsed,
    /// Time from entry to return
    Duration,
    /// Number of the thread
    Tid,
    /// Nothing
    None,
}

/// `--sort`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypedSort {
    /// Time from entry to return
    Total,
    /// The same without what other recorded functions took within it
    #[value(name = "self")]
    Own,
    /// Number of calls
    Call,
    /// Name
    Func,
}

/// Compare two recordings, function by function
///
/// Shows how much longer the calls of each function took in B than in A, and how many more there were: as uftrace report --diff
/// does. A difference without a sign of `-` says that B has more.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(DIFF, ONCE))]
pub(crate) struct TypedDiff {
    /// Folder of the recording to compare with
    #[arg(value_name = "A")]
    pub(crate) base: PathBuf,
    /// Folder of the other recording
    #[arg(value_name = "B")]
    pub(crate) other: PathBuf,
    /// What to sort by; the largest differences first
    #[arg(short, long, value_name = "KEY", value_enum, default_value = "total")]
    pub(crate) sort: TypedSort,
    /// Show what both recordings have, too
    #[arg(long)]
    pub(crate) full: bool,
    #[command(flatten)]
    pub(crate) depth: TypedDepth,
    #[command(flatten)]
    pub(crate) selection: TypedSelection,
    #[command(flatten)]
    pub(crate) pager: TypedPager,
}

/// Show what a recording is of: its command, processes, threads and size
///
/// The calls themselves are not read, so this is quick for large recordings.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(INFO, ONCE))]
pub(crate) struct TypedInfo {
    /// Folder of the recording
    #[arg(value_name = "DIR", default_value = DIR)]
    pub(crate) dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Write a recording in the form of other programs
///
/// A timeline has an entry for each call; folded stacks have the time of each stack of recorded functions. A file of
/// folded stacks in place of a recording becomes a picture.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(DUMP, ONCE), group = ArgGroup::new("form").required(true))]
pub(crate) struct TypedDump {
    /// A timeline as JSON, for ui.perfetto.dev or chrome://tracing
    #[arg(long, group = "form")]
    pub(crate) chrome: bool,
    /// Folded stacks with the nanoseconds of each; of a file of folded stacks, a flame graph (SVG)
    #[arg(long, group = "form")]
    pub(crate) flame: bool,
    /// What the numbers of a file of folded stacks are [default: samples]
    #[arg(long, value_name = "WORD", requires = "flame")]
    pub(crate) unit: Option<String>,
    /// Folder of the recording, or with --flame a file of folded stacks
    #[arg(value_name = "DIR", default_value = DIR)]
    pub(crate) dir: PathBuf,
    /// Write to FILE [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) depth: TypedDepth,
    #[command(flatten)]
    pub(crate) selection: TypedSelection,
}

const RECORD: &str = "\
Examples:
  A command from its start to its end, nothing lost:
    trapline record --lossless -o calls -- ./shop 100
    trapline report calls
  A running program, for 2 seconds:
    trapline record -d 2 -p PID -o calls
  Some functions, and some of a library:
    trapline record -p PID -o calls 'store*' libc:malloc libc:free
  At a twentieth of the program's time at most:
    trapline record --budget 5% -p PID -o calls";

const REPLAY: &str = "\
What it prints:
            [   6511] | handle() {
     462 ns [   6511] |   price();
  57.194 us [   6511] | } /* handle */

Examples:
  The first calls:
    trapline replay calls | head -50";

const REPORT: &str = "\
What it prints:
  Total time   of all calls from entry to return; of calls within calls of
               the same function, only the outermost
  Self time    the same, without calls of recorded functions within it
  Calls        how often it was called

Examples:
  By own time:
    trapline report -s self calls";

const DIFF: &str = "\
What it prints:
    Total time     Self time         Calls   Function
     -1.204 us     +0.310 us            -2   price
  What B has less (-) or more (+) than A.

Examples:
  Two versions of a program:
    trapline record -o old -- ./shop-1 100
    trapline record -o new -- ./shop-2 100
    trapline diff old new";

const INFO: &str = "\
Examples:
  What was recorded, and whether calls are missing:
    trapline info calls";

const DUMP: &str = "\
Examples:
  A timeline for ui.perfetto.dev:
    trapline dump --chrome calls -o calls.json
  A flame graph:
    trapline dump --flame calls -o calls.folded
    trapline dump --flame calls.folded --unit ns -o calls.svg";
