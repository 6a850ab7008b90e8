//! `hist`, as clap reads it.

use clap::Args;

use super::shared::{Common, TypedEnds, TypedFilter};

/// The most rows of `--top`, if no number is typed.
const TOP: &str = "10";

/// `hist`
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub(crate) struct TypedHist {
    /// Of what: an argument's name, ret, dur, or an expression of them; see docs/guide/filters.md
    #[arg(value_name = "EXPR", required = true, allow_hyphen_values = true)]
    pub(crate) expression: String,
    /// Probes, for example 'libc:read(int fd, ptr buf, size_t n) -> ssize_t'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Equal steps instead of powers of two
    #[arg(long, value_name = "MIN:MAX:STEP", conflicts_with = "top", help_heading = "Histogram")]
    pub(crate) linear: Option<String>,
    /// The N values that were seen most (10)
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = TOP,
          value_parser = clap::value_parser!(u32).range(1..), help_heading = "Histogram")]
    pub(crate) top: Option<u32>,
    /// One for each thread (tid), thread name (comm) or CPU (cpu), or for each value of an argument, text or expression
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, help_heading = "Histogram")]
    pub(crate) by: Option<String>,
    #[command(flatten)]
    pub(crate) filter: TypedFilter,
    /// Only threads of this name (may be given more than once)
    #[arg(long = "comm", value_name = "NAME", help_heading = "Calls")]
    pub(crate) comms: Vec<String>,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) common: Common,
}

const HELP: &str = "\
The target adds up, in tables for each CPU: arguments at the entry, fields and str too, or ret and dur at the exit, and what is computed of all these; one by another too (--by).
What a buf holds, and one str by another, is recorded call by call, as trace does, and added up here. docs/guide/hist.md says which is which.
  trapline hist n 'libc:read(int fd, ptr buf, size_t n)'
  trapline hist ret --linear 0:4096:256 --if 'ret >= 0' 'libc:read() -> ssize_t'
  trapline hist path --top=20 'libc:openat(int fd, str path)'
  trapline hist n --by fd 'libc:read(int fd, ptr buf, size_t n)'
  trapline hist dur --by path 'libc:openat(int fd, str path, int flags)'";
