//! What was typed, word by word; nothing is looked up or opened here. [`super::ready`] converts it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use trapline::Returns;

use super::ends::TypedEnds;
use super::serve::TypedServe;

/// Count and time the functions of running programs, from outside, without traps.
#[derive(Parser, Debug, Clone)]
#[command(name = "trapline", version, about, max_term_width = 100, after_help = AFTER)]
pub(crate) struct Typed {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

const AFTER: &str = "\
Probes are bpftrace's: uprobe:PATH:func[+off], uretprobe:PATH:func, usdt:PATH:provider:name, with u:, ur:, U: short.
PATH may be a path, a library's short name (libc) or the program's own name; without it: the program, then its
libraries. func may hold * and ?, or be a /regular expression/, sym@VERSION or 0xADDRESS.

Exit status: 0 done, 1 failed (also: a process of -p or -n was killed while probed), 2 wrong usage, 3 nothing could be probed (with -f known at the end). A command that was launched
gives its own status (128+n if signal n ended it), whatever became of the probes; it is not run if, without -f, it has
nothing that the probes name (3), or if our output cannot be opened (1). Ctrl-C prints the result, detaches and exits 0.";

/// The verbs.
#[derive(Subcommand, Debug, Clone)]
pub(crate) enum Verb {
    /// Hits and hits per second of each function
    Count(Count),
    /// Time from entry to return, as a histogram
    Lat(Lat),
    /// How often an argument or a value returned was what: as a histogram, or the most frequent ones
    Hist(super::hist::TypedHist),
    /// A line for each call: arguments, value, duration
    Trace(Trace),
    /// The call tree below a function, with durations
    Graph(super::graph::TypedGraph),
    /// Who calls: stacks at hits, by count or by time spent
    Stack(super::stack::TypedStack),
    /// What is called most now: a live table of rates and percentiles
    Top(super::top::TypedTop),
    /// Who writes a variable, when, and what: by hardware breakpoints
    Watch(Watch),
    /// Functions with file, offset, size, and the tactic that each would get
    List(List),
    /// What is patched in a process, and by whom
    Status(Pids),
    /// Clean up after a tracer that died
    Detach(Pids),
    /// Build a sample program, trace it, and show what it costs
    Demo(Demo),
}

/// Which processes.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Targets (with none: every process that maps the file and that you may trace)")]
pub(crate) struct TypedTarget {
    /// Trace this process (may be given more than once)
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    /// Trace all processes of this name
    #[arg(short = 'n', long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Run this command and trace it from its start
    #[arg(short = 'c', long = "command", value_name = "CMD")]
    pub(crate) command: Option<String>,
    /// Follow fork and exec
    #[arg(short = 'f', long = "follow")]
    pub(crate) follow: bool,
    /// The same as -c, word by word
    #[arg(last = true, value_name = "CMD", conflicts_with = "command")]
    pub(crate) words: Vec<OsString>,
}

/// What every tracing verb knows.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) target: TypedTarget,
    /// Print every INTERVAL seconds (or 500ms, 2m)
    #[arg(short, long, value_name = "INTERVAL", help_heading = "Output")]
    pub(crate) interval: Option<String>,
    /// Stop after SECONDS (or 500ms, 2m)
    #[arg(short, long, value_name = "SECONDS", help_heading = "Output")]
    pub(crate) duration: Option<String>,
    /// Print the time of day with each report
    #[arg(short = 'T', long, help_heading = "Output")]
    pub(crate) timestamps: bool,
    /// One JSON object a line, see docs/guide/json.md
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write reports to FILE, as its suffix says (.json; .csv, .html, .perfetto-trace, .trapline where the command has that), else as text
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// No closing summary, no notices
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
    /// Show the tactic for each site; change nothing
    #[arg(long, help_heading = "Patching")]
    pub(crate) dry_run: bool,
    /// Stop all threads while code changes, instead of none
    #[arg(long, help_heading = "Patching")]
    pub(crate) strict: bool,
    /// The target's SIGSEGV handler only reports and ends it: also move instructions that may fault. True of redis; never of
    /// the JVM, Go, .NET or WebAssembly, which look the address up
    #[arg(long, help_heading = "Patching")]
    pub(crate) faults_are_fatal: bool,
}

/// How hits are split.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypedBy {
    /// By thread
    Tid,
    /// By thread name
    Comm,
    /// By CPU
    Cpu,
}

impl TypedBy {
    /// The one that is called so.
    pub(super) fn named(text: &str) -> Option<Self> {
        Self::from_str(text, false).ok()
    }
    pub(super) const fn ready(self) -> trapline::By {
        match self {
            Self::Tid => trapline::By::Thread,
            Self::Comm => trapline::By::ThreadName,
            Self::Cpu => trapline::By::Cpu,
        }
    }
}

/// `count`
#[derive(Args, Debug, Clone)]
pub(crate) struct Count {
    /// Probes, for example 'libssl:SSL_*'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Split hits; by tid or comm a hit costs more than by cpu
    #[arg(long, value_name = "WHAT", help_heading = "Output")]
    pub(crate) by: Option<TypedBy>,
    #[command(flatten)]
    pub(crate) serve: TypedServe,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `lat`
#[derive(Args, Debug, Clone)]
pub(crate) struct Lat {
    /// Functions, for example processCommand
    #[arg(value_name = "FUNC", required = true)]
    pub(crate) probes: Vec<String>,
    /// One histogram per function instead of one for all
    #[arg(short = 'F', long, help_heading = "Histogram")]
    pub(crate) per_function: bool,
    /// Microseconds
    #[arg(short = 'u', long, conflicts_with = "milliseconds", help_heading = "Histogram")]
    pub(crate) microseconds: bool,
    /// Milliseconds
    #[arg(short = 'm', long, help_heading = "Histogram")]
    pub(crate) milliseconds: bool,
    /// Equal steps instead of powers of two, in the unit shown
    #[arg(long, value_name = "MIN:MAX:STEP", help_heading = "Histogram")]
    pub(crate) linear: Option<String>,
    /// Leave out calls shorter than TIME (1ms, 20us, 500ns)
    #[arg(long, value_name = "TIME", help_heading = "Histogram")]
    pub(crate) min: Option<String>,
    /// Of recursive calls, only the outermost
    #[arg(long, help_heading = "Histogram")]
    pub(crate) outermost: bool,
    #[command(flatten)]
    pub(crate) ends: TypedEnds,
    #[command(flatten)]
    pub(crate) serve: TypedServe,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// `--ret`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypedReturns {
    Auto,
    Exits,
    Stack,
}

impl TypedReturns {
    pub(super) const fn ready(self) -> Returns {
        match self {
            Self::Auto => Returns::Auto,
            Self::Exits => Returns::Exits,
            Self::Stack => Returns::Stack,
        }
    }
}

/// `trace`
#[derive(Args, Debug, Clone)]
#[command(after_help = TRACE)]
pub(crate) struct Trace {
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
    /// Only calls for which EXPR holds, over the arguments' names, tid, ret and dur; see docs/guide/filters.md
    #[arg(long = "if", value_name = "EXPR", allow_hyphen_values = true, help_heading = "Calls")]
    pub(crate) filter: Option<String>,
    /// Only this thread (may be given more than once)
    #[arg(long = "tid", value_name = "TID", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Calls")]
    pub(crate) tids: Vec<u32>,
    /// Only threads of this name (may be given more than once); a new name counts some milliseconds later
    #[arg(long = "comm", value_name = "NAME", help_heading = "Calls")]
    pub(crate) comms: Vec<String>,
    /// Of the calls that pass, one in N on each CPU
    #[arg(long, value_name = "1/N", help_heading = "Calls")]
    pub(crate) sample: Option<String>,
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

/// `watch`
#[derive(Args, Debug, Clone)]
#[command(after_help = WATCH)]
pub(crate) struct Watch {
    /// Places, for example counter, libfoo:table+16:4, server.stat_numcommands, 0x555555558010:8
    #[arg(value_name = "PLACE", required = true)]
    pub(crate) places: Vec<String>,
    /// No line for each access, only the summary by writer
    #[arg(long, help_heading = "Accesses")]
    pub(crate) count: bool,
    /// Only accesses for which EXPR holds, over value, old, tid, pid and cpu
    #[arg(long = "if", value_name = "EXPR", help_heading = "Accesses")]
    pub(crate) filter: Option<String>,
    /// End with the first access for which EXPR holds
    #[arg(long, value_name = "EXPR", help_heading = "Accesses")]
    pub(crate) until: Option<String>,
    /// Show callers, by frame pointers
    #[arg(long, help_heading = "Accesses")]
    pub(crate) stack: bool,
    /// Let places take turns where debug registers do not suffice, each for SLICE (100ms)
    #[arg(long, value_name = "SLICE", num_args = 0..=1, require_equals = true, default_missing_value = "100ms",
          help_heading = "Accesses")]
    pub(crate) rotate: Option<String>,
    #[command(flatten)]
    pub(crate) target: TypedTarget,
    /// Print the summary so far every INTERVAL seconds (or 500ms, 2m)
    #[arg(short, long, value_name = "INTERVAL", help_heading = "Output")]
    pub(crate) interval: Option<String>,
    /// Stop after SECONDS (or 500ms, 2m)
    #[arg(short, long, value_name = "SECONDS", help_heading = "Output")]
    pub(crate) duration: Option<String>,
    /// Print the time of day with each access, instead of seconds since the start
    #[arg(short = 'T', long, help_heading = "Output")]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) sink: Sink,
}

const WATCH: &str = "\
A place is [FILE:]NAME[+OFFSET][:LEN][:w|rw|x] or 0xADDRESS[:LEN][:w|rw|x]. NAME is a symbol, or a variable with fields and
indexes (server.clients[2].count) where there is debug information. w, the default, is for stores, rw for loads too, x for
execution. A debug register holds 1, 2, 4 or 8 aligned bytes; there are four.

The target is never stopped; each access costs it a trap, some microseconds. A `?` stands behind a value that is not
certain to be the one that this access found or left.";

/// `list`
#[derive(Args, Debug, Clone)]
pub(crate) struct List {
    /// Patterns, for example '/usr/bin/git:cmd_*'
    #[arg(value_name = "PATTERN", required = true)]
    pub(crate) probes: Vec<String>,
    /// List for exits as well, as `lat` would patch them
    #[arg(long)]
    pub(crate) lat: bool,
    /// As `lat --ret=FORM` would patch them
    #[arg(long, value_name = "FORM", value_enum, requires = "lat")]
    pub(crate) ret: Option<TypedReturns>,
    #[command(flatten)]
    pub(crate) common: ListCommon,
}

/// What `list` knows of the common options.
#[derive(Args, Debug, Clone)]
pub(crate) struct ListCommon {
    /// In this process (may be given more than once)
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    /// In all processes of this name
    #[arg(short = 'n', long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// As `--strict` would patch them
    #[arg(long)]
    pub(crate) strict: bool,
    /// As `--faults-are-fatal` would patch them
    #[arg(long)]
    pub(crate) faults_are_fatal: bool,
    #[command(flatten)]
    pub(crate) sink: Sink,
}

/// Where a report goes, for verbs that print once.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Sink {
    /// One JSON object a line, see docs/guide/json.md
    #[arg(long)]
    pub(crate) json: bool,
    /// Write reports to FILE, as JSON if it ends in .json
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// No closing summary, no notices
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `status` and `detach`
#[derive(Args, Debug, Clone)]
pub(crate) struct Pids {
    /// Processes
    #[arg(short = 'p', long = "pid", value_name = "PID", required = true,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    #[command(flatten)]
    pub(crate) sink: Sink,
}

/// `demo`
#[derive(Args, Debug, Clone)]
pub(crate) struct Demo {
    /// How long each part runs, in seconds
    #[arg(short, long, value_name = "SECONDS", default_value = "1")]
    pub(crate) duration: String,
    /// Keep the sample program's directory
    #[arg(long)]
    pub(crate) keep: bool,
}
