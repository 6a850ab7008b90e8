//! `lat`, as clap reads it.

use clap::Args;

use super::help::{TRACED, sections};
use super::shared::{Common, TypedEnds, TypedServe};

/// Time from entry to return, as a histogram
///
/// Takes the time at the entry of a function and at its end, and prints the durations as a histogram with
/// percentiles, mean and total. Every call is timed; none is sampled. A call takes about 25 nanoseconds longer.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedLat {
    /// Functions to time, for example processCommand
    #[arg(value_name = "FUNC", required = true)]
    pub(crate) probes: Vec<String>,
    /// Print one histogram for each function, instead of one for all
    #[arg(short = 'F', long, help_heading = "Histogram")]
    pub(crate) per_function: bool,
    /// Show microseconds, instead of nanoseconds
    #[arg(short = 'u', long, conflicts_with = "milliseconds", help_heading = "Histogram")]
    pub(crate) microseconds: bool,
    /// Show milliseconds, instead of nanoseconds
    #[arg(short = 'm', long, help_heading = "Histogram")]
    pub(crate) milliseconds: bool,
    /// Equal steps instead of powers of two, in the unit shown; at most 1000
    #[arg(long, value_name = "MIN:MAX:STEP", help_heading = "Histogram")]
    pub(crate) linear: Option<String>,
    /// Leave out calls shorter than TIME (1ms, 20us, 500ns)
    #[arg(long, value_name = "TIME", help_heading = "Histogram")]
    pub(crate) min: Option<String>,
    /// Time only the outermost of recursive calls
    #[arg(long, help_heading = "Histogram")]
    pub(crate) outermost: bool,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) serve: TypedServe,
    #[command(flatten)]
    pub(crate) common: Common,
}

const MORE: &str = "\
What it prints:
  [1K, 2K)  Calls that took at least 1K and less than 2K; K is 1024. The
            line above has the unit: nsecs, usecs (-u) or msecs (-m).
  |@@@@|    The same number, relative to the fullest row.
  p50 p99   Half, or 99 %, of the calls took at most so long (off by at
            most 1/16). max, avg, total and count are exact.
  calls:    Calls that are no plain pair of entry and return, if any.

Examples:
  How long do calls of a function take?
    trapline lat -d 2 -p PID handle
  One histogram for each function, in microseconds:
    trapline lat -F -u -p PID price store
  Only slow calls:
    trapline lat --min 200us -p PID store
  Equal steps:
    trapline lat -u --linear 0:500:50 -p PID store
  A command from its start:
    trapline lat libc:write -- gzip -kf data.txt";
