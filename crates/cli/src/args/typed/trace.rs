//! `trace`, as clap reads it.

use std::path::PathBuf;

use clap::Args;

use super::help::{TRACED, sections};
use super::shared::{Common, TypedEnds, TypedFilter};

/// A line for each call: arguments, value, duration
///
/// Prints a line when a call has ended. Arguments and value are shown as debug information has them, or as
/// the signature behind the probe says. The target never waits: a record that finds the ring of its CPU full
/// is dropped, and counted as missed. A call takes 12 to 25 nanoseconds longer, and more with texts.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedTrace {
    /// What to trace, for example 'libc:openat(int fd, str path, hex flags) -> int'
    #[arg(value_name = "PROBE", required_unless_present = "from")]
    pub(crate) probes: Vec<String>,
    /// Show what -o FILE.trapline recorded, instead of tracing.
    ///
    /// Output and -o are as they would have been in that run. --if, --tid, --comm and --max select calls.
    #[arg(long, value_name = "FILE", help_heading = "Calls", conflicts_with_all = LIVE)]
    pub(crate) from: Option<PathBuf>,
    /// Record entries only, which is cheaper.
    ///
    /// This also works for functions with unknown exits. Lines have no value and no duration.
    #[arg(long, conflicts_with_all = ["ret", "maxactive"], help_heading = "Calls")]
    pub(crate) entry_only: bool,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) filter: TypedFilter,
    /// Only threads of this name; may be given more than once.
    ///
    /// A thread that takes another name is noticed some milliseconds later.
    #[arg(long = "comm", value_name = "NAME", help_heading = "Calls")]
    pub(crate) comms: Vec<String>,
    /// Stop after N calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Calls")]
    pub(crate) max: Option<u64>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What is of no use to a recording.
const LIVE: [&str; 22] = [
    "probes",
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
    "entry_only",
    "ret",
    "maxactive",
    "sample",
    "interval",
    "duration",
    "timestamps",
    "dry_run",
    "strict",
    "faults_are_fatal",
    "kernel_uprobes",
];

const MORE: &str = "\
What it prints:
  0.020526  6512 handle(order=0x7f0f0d82fe80) = 0 <0.000066549>
  Seconds since attach, thread, function, arguments, = value, <duration in
  seconds>. ? stands for a value that is not known, <fault> for memory that
  cannot be read.

Signatures:
  PROBE(TYPE NAME, ...) -> TYPE, for code without debug information.
  TYPE is int, unsigned, long, size_t, char, bool, i8 to i64, u8 to u64,
  float, double, hex, ptr or TYPE *. For arguments also str, the text that
  it points to, and buf(len=NAME), as many bytes as argument NAME says; of
  both the first 64 bytes.

Examples:
  Calls that fail:
    trapline trace --if 'ret < 0' 'libc:open64(str path, hex flags) -> int'
  Slow calls:
    trapline trace --if 'dur > 300us' -p PID store
  Fields of what an argument points to, by debug information:
    trapline trace -p PID 'handle(order->id, order->customer->name)'
  Variables at a line:
    trapline trace -p PID 'shop@cart.c:34(total, item->price)'
  Record now, look later:
    trapline trace -d 10 -o calls.trapline -p PID handle
    trapline trace --from calls.trapline --if 'dur > 20us'
  A timeline for ui.perfetto.dev:
    trapline trace -d 1 -o calls.perfetto-trace -p PID handle store";
