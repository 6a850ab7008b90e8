//! `stack`, as typed and as ready values.

use clap::{Args, ValueEnum};
use trapline::filter::Filter;
use trapline::probes::ProbeKind;
use trapline::{ProbeSpec, Unwinding};

use super::command::Run;
use super::ends::{Ends, TypedEnds};
use super::error::UsageError;
use super::fields::Fields;
use super::filters::{self, FilterOptions};
use super::prototype::{Look, complete, split};
use super::ready::is_function;
use super::typed::Common;
use crate::report::format::Format;

/// What it writes.
const PICTURES: &[Format] = &[Format::Json, Format::Html, Format::Folded, Format::Svg, Format::Pprof];

/// `stack`, as typed.
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
    /// Only calls for whose arguments EXPR holds; see docs/guide/filters.md
    #[arg(long = "if", value_name = "EXPR", allow_hyphen_values = true, help_heading = "Calls")]
    pub(crate) filter: Option<String>,
    /// Only this thread (may be given more than once)
    #[arg(long = "tid", value_name = "TID", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Calls")]
    pub(crate) tids: Vec<u32>,
    /// Of the calls that pass, one in N on each CPU
    #[arg(long, value_name = "1/N", help_heading = "Calls")]
    pub(crate) sample: Option<String>,
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

/// Bytes of a stack that are copied, as perf does.
const COPIED: u32 = 8192;

const HELP: &str = "\
The target's own threads walk their stacks by frame pointers, at some tens of nanoseconds a hit: programs and libraries need to be
compiled with -fno-omit-frame-pointer to be seen whole; a function without one is left out, and its caller too. The walk never leaves the
stack, so it ends at a signal handler's or a coroutine's first frame. --unwind dwarf copies the top of the stack instead, and the
tracer unwinds it by .eh_frame, as exceptions are: for code without frame pointers, at some hundreds of nanoseconds a hit.

-o FILE.svg draws a flame graph, .html a page with that, a table and what happened when (with --time also how long calls took), .folded holds a line for each stack as flamegraph.pl reads it, .pb.gz is for pprof
(go tool pprof), .json has one object for each stack with file and offset of each frame; see docs/guide/stack.md.";

/// `stack`, ready.
#[derive(Debug)]
pub(crate) struct Stacks {
    /// What and how.
    pub(crate) run: Run,
    /// How stacks are learnt.
    pub(crate) unwinding: Unwinding,
    /// Durations are summed.
    pub(crate) time: bool,
    /// Stacks in a text.
    pub(crate) top: usize,
    /// Which calls, probe by probe.
    pub(crate) filters: Vec<Filter>,
    /// How the ends of calls are seen, where durations are summed.
    pub(crate) ends: Ends,
}

/// Checks and converts.
pub(crate) fn stack(typed: TypedStack, look: Look<'_>) -> Result<Stacks, UsageError> {
    let (mut run, signatures) = split(&typed.probes, typed.common, PICTURES, look)?;
    let wrong = |probe: &&ProbeSpec| probe.kind == ProbeKind::Return || typed.time && !is_function(probe);
    if let Some(probe) = run.probes.iter().find(wrong) {
        return Err(match typed.time {
            true => UsageError::NotTimed(probe.text.clone()),
            false => UsageError::NoStackAtReturn(probe.text.clone()),
        });
    }
    if typed.ends.any() && !typed.time {
        return Err(UsageError::Conflict("--ret and --maxactive are for calls that are timed: add --time"));
    }
    let ends = typed.ends.ready()?;
    let unwinding = match (typed.unwind, typed.depth, typed.stack_bytes) {
        (TypedUnwind::Fp, depth, None) => Unwinding::FramePointers(depth.unwrap_or(Unwinding::DEEPEST)),
        (TypedUnwind::Dwarf, None, bytes) => Unwinding::Copied(bytes.unwrap_or(COPIED)),
        (TypedUnwind::Fp, ..) => {
            return Err(UsageError::Conflict("--stack-bytes is for copies: add --unwind dwarf"));
        }
        (TypedUnwind::Dwarf, ..) => {
            return Err(UsageError::Conflict(
                "--depth is for frame pointers; with --unwind dwarf say --stack-bytes",
            ));
        }
    };
    let filter_options = FilterOptions {
        condition: typed.filter,
        tids: typed.tids,
        comms: Vec::new(),
        sample: typed.sample.as_deref().map(filters::sample).transpose()?,
    };
    // If no filter was typed, no debug information is needed.
    let asks = !filter_options.is_nothing();
    let probes = if asks { complete(&mut run, signatures, look)? } else { Vec::new() };
    let fields: Vec<Fields<'_>> = probes.iter().map(|(_, one)| Fields::of(one.as_ref())).collect();
    let filters = filters::filters(&probes, false, &filter_options, &fields)?;
    Ok(Stacks { run, unwinding, time: typed.time, top: typed.top, filters, ends })
}
