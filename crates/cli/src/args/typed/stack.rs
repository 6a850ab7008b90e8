//! `stack`, as clap reads it.

use clap::{Args, ValueEnum};
use trapline::Unwinding;

use super::shared::{Common, TypedEnds, TypedFilter};

/// `stack`
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub(crate) struct TypedStack {
    /// Probes, for example libc:malloc, or 'libc:malloc(size_t n)' for conditions on n
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Sum what the calls took, from entry to return, instead of counting them
    #[arg(long, help_heading = "Stacks")]
    pub(crate) time: bool,
    /// How callers are found: by frame pointers, in the target; or by unwind tables, from a copy of the stack
    #[arg(long, value_name = "HOW", value_enum, default_value_t = TypedUnwind::Fp, help_heading = "Stacks")]
    pub(crate) unwind: TypedUnwind,
    /// Callers to note, at most, by frame pointers (122 without this, which is the most)
    #[arg(long, value_name = "N", help_heading = "Stacks",
          value_parser = clap::value_parser!(u8).range(1..=i64::from(Unwinding::DEEPEST)))]
    pub(crate) depth: Option<u8>,
    /// Bytes of the stack to copy, at most, for unwind tables (8192 without this; rounded up to a power of two)
    #[arg(long, value_name = "BYTES", help_heading = "Stacks",
          value_parser = clap::value_parser!(u32).range(256..=65536))]
    pub(crate) stack_bytes: Option<u32>,
    /// Stacks to print, most hits first; files hold all
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
    Fp,
    Dwarf,
}

const HELP: &str = "\
The target's own threads walk their stacks by frame pointers, at some tens of nanoseconds a hit: programs and libraries need to be
compiled with -fno-omit-frame-pointer to be seen whole; a function without one is left out, and its caller too. The walk never leaves the
stack, so it ends at a signal handler's or a coroutine's first frame. --unwind dwarf copies the top of the stack instead, and the
tracer unwinds it by .eh_frame, as exceptions are: for code without frame pointers, at some hundreds of nanoseconds a hit.

-o FILE.svg draws a flame graph, .html a page with that, a table and what happened when (with --time also how long calls took), .folded holds a line for each stack as flamegraph.pl reads it, .pb.gz is for pprof
(go tool pprof), .json has one object for each stack with file and offset of each frame; see docs/guide/stack.md.";
