//! `stack`, as clap reads it.

use clap::{Args, ValueEnum};
use trapline::Unwinding;

use super::help::{TRACED, sections};
use super::shared::{Common, TypedEnds, TypedFilter};

/// Stacks at hits, by count or by time spent
///
/// Records the stack at each hit, and adds equal stacks up: by number of calls, or with --time by how long the
/// calls took. By default the thread that hits walks its own stack by frame pointers, at some tens of
/// nanoseconds; functions compiled without frame pointers are left out. With --unwind dwarf the top of the
/// stack is copied, and the tracer unwinds it, at some hundreds of nanoseconds.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedStack {
    /// What to look at, for example libc:malloc.
    ///
    /// For conditions on arguments, with a signature: 'libc:malloc(size_t n)'.
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Add up how long calls took, instead of counting them
    #[arg(long, help_heading = "Stacks")]
    pub(crate) time: bool,
    /// How callers are found
    #[arg(long, value_name = "HOW", value_enum, default_value_t = TypedUnwind::Fp, help_heading = "Stacks")]
    pub(crate) unwind: TypedUnwind,
    /// The most callers that are noted, by frame pointers [default: 122]
    #[arg(long, value_name = "N", help_heading = "Stacks",
          value_parser = clap::value_parser!(u8).range(1..=i64::from(Unwinding::DEEPEST)))]
    pub(crate) depth: Option<u8>,
    /// The most bytes of a stack that are copied, for dwarf [default: 8192].
    ///
    /// The number is rounded up to a power of two.
    #[arg(long, value_name = "BYTES", help_heading = "Stacks",
          value_parser = clap::value_parser!(u32).range(256..=65536))]
    pub(crate) stack_bytes: Option<u32>,
    /// Print the N stacks with the most hits; files hold all
    #[arg(long, value_name = "N", default_value_t = 20, help_heading = "Stacks")]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) filter: TypedFilter,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `--unwind`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypedUnwind {
    /// By frame pointers, in the target
    Fp,
    /// By unwind tables, from a copy of the stack
    Dwarf,
}

const MORE: &str = "\
What it prints:
  2,364 calls (70 %) of process 6510 (shop)
      store at /tmp/shop.c:27
      handle at /tmp/shop.c:42
  Hits with this stack and their share; the probed function, its caller,
  and so on. ... at the end: the stack goes on.

Files:
  -o FILE.svg     A flame graph.
  -o FILE.html    A page: a table, a flame graph, and what happened when.
  -o FILE.folded  A line for each stack, as flamegraph.pl reads it.
  -o FILE.pb.gz   A profile for pprof.
  -o FILE.json    One object for each stack.

Examples:
  Which code calls malloc?
    trapline stack -d 1 -p PID libc:malloc
  Which callers spend the time?
    trapline stack --time -d 1 -p PID store
  Only some calls:
    trapline stack --if 'n > 4096' -p PID 'libc:malloc(size_t n)'
  A flame graph:
    trapline stack -d 5 -o malloc.svg -p PID libc:malloc
  A program without frame pointers:
    trapline stack --unwind dwarf -p PID libc:write";
