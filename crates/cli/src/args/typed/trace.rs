//! `trace`, as clap reads it.

use std::path::PathBuf;

use clap::Args;

use super::shared::{Common, TypedEnds, TypedFilter};

/// `trace`
#[derive(Args, Debug, Clone)]
#[command(after_help = TRACE)]
pub(crate) struct TypedTrace {
    /// Probes, for example 'libc:openat(int fd, ptr path, hex flags) -> int'
    #[arg(value_name = "PROBE", required_unless_present = "from")]
    pub(crate) probes: Vec<String>,
    /// Trace nothing: read what -o FILE.trapline recorded, and show it or write it (-o) as the same run would have
    #[arg(long, value_name = "FILE", help_heading = "Calls", conflicts_with_all = LIVE)]
    pub(crate) from: Option<PathBuf>,
    /// Entries only: cheaper, and for functions whose exits are not all known
    #[arg(long, conflicts_with_all = ["ret", "maxactive"], help_heading = "Calls")]
    pub(crate) entry_only: bool,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) filter: TypedFilter,
    /// Only threads of this name (may be given more than once); a new name counts some milliseconds later
    #[arg(long = "comm", value_name = "NAME", help_heading = "Calls")]
    pub(crate) comms: Vec<String>,
    /// End after N calls
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Calls")]
    pub(crate) max: Option<u64>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What is of no use to a recording.
const LIVE: [&str; 16] = [
    "probes",
    "pids",
    "names",
    "command",
    "words",
    "follow",
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
];

const TRACE: &str = "\
A line: seconds since the start, thread, function, arguments, value, <duration in seconds>. Arguments and value are shown as debug
information has them, or as the signature behind the probe says (docs/guide/arguments.md): PROBE(TYPE NAME, …) -> TYPE, with int, unsigned, long, size_t, char, bool, i8 to i64, u8 to u64,
float, double, hex, ptr or TYPE *; and str, what it points to up to a 0, or buf(len=NAME), as many bytes as that argument says: of both the first
64, copied at the entry. A record is written by the target's own thread, at some tens of nanoseconds; one that finds its CPU's ring full
is dropped and counted as missed.

--if, --tid, --comm and --sample are decided in the target before anything is recorded, at some nanoseconds; what --if asks of fields once they
are read, of ret or dur at the return. All of it is counted.
  trapline trace --if 'flags & O_CREAT && ret < 0' 'libc:openat(int fd, ptr path, int flags) -> int'

Records can be kept as they are, millions a second, and shown later (docs/guide/recordings.md):
  trapline trace -o calls.trapline -p PID 'libc:read'; trapline trace --from calls.trapline --if 'ret < 0'";
