//! `hist`, as clap reads it.

use clap::Args;

use super::help::{TRACED, sections};
use super::shared::{Common, TypedEnds, TypedFilter};

/// The most rows of `--top`, if no number is typed.
const TOP: &str = "10";

/// Which values an argument or a result has, and how often
///
/// Counts at each call of the probes which value EXPR had, and prints a histogram, or with --top the most
/// frequent values. The target adds up where it can, so no record is written for a call. What it cannot add
/// up is recorded call by call, and added up by the reader; a notice says so.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedHist {
    /// The value: an argument's name, ret, dur, or an expression of them.
    ///
    /// ret is what was returned, dur how long the call took, in nanoseconds. docs/guide/filters.md has the grammar.
    #[arg(value_name = "EXPR", required = true, allow_hyphen_values = true)]
    pub(crate) expression: String,
    /// Functions or USDT probes, for example 'libc:read(int fd, ptr buf, size_t n)'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Equal steps instead of powers of two; at most 1000
    #[arg(long, value_name = "MIN:MAX:STEP", conflicts_with = "top", help_heading = "Histogram")]
    pub(crate) linear: Option<String>,
    /// The N most frequent values; 10 without =N
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = TOP,
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Histogram")]
    pub(crate) top: Option<u32>,
    /// One histogram for each value of KEY.
    ///
    /// KEY is tid (thread), comm (thread name), cpu, or an argument, a field, a text or an expression.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, help_heading = "Histogram")]
    pub(crate) by: Option<String>,
    /// The sum of the values of all calls, instead of a histogram
    #[arg(long, conflicts_with_all = ["linear", "top"], help_heading = "Sums")]
    pub(crate) sum: bool,
    /// The least value
    #[arg(long, conflicts_with_all = ["linear", "top"], help_heading = "Sums")]
    pub(crate) min: bool,
    /// The greatest value
    #[arg(long, conflicts_with_all = ["linear", "top"], help_heading = "Sums")]
    pub(crate) max: bool,
    /// The sum divided by the number of calls
    #[arg(long, conflicts_with_all = ["linear", "top"], help_heading = "Sums")]
    pub(crate) avg: bool,
    /// All four of them
    #[arg(long, conflicts_with_all = ["linear", "top"], help_heading = "Sums")]
    pub(crate) stats: bool,
    #[command(flatten)]
    pub(crate) filter: TypedFilter,
    /// Only threads of this name; may be given more than once
    #[arg(long = "comm", value_name = "NAME", help_heading = "Calls")]
    pub(crate) comms: Vec<String>,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) common: Common,
}

const MORE: &str = "\
What it prints:
  [16, 32)  Calls for which EXPR was at least 16 and less than 32.
  VALUE     With --top, and for texts: calls for which EXPR was VALUE.
  SUM, MIN, MAX, AVG
            What EXPR was over all calls. A sum does not overflow.
  hits =    All calls that were counted.

Examples:
  Sizes of reads:
    trapline hist n 'libc:read(int fd, ptr buf, size_t n)'
  Results, in equal steps:
    trapline hist ret --linear 0:4096:256 'libc:read() -> ssize_t'
  The files that are opened most:
    trapline hist path --top=20 'libc:openat(int fd, str path)'
  Sizes, one histogram for each file descriptor:
    trapline hist n --by fd 'libc:read(int fd, ptr buf, size_t n)'
  Bytes that are read from each file descriptor, and the most at once:
    trapline hist --sum --max ret --by fd 'libc:read(int fd) -> ssize_t'
  Durations, one histogram for each file:
    trapline hist dur --by path 'libc:openat(int fd, str path, int flags)'";
