//! Options that several verbs have.
//!
//! In: words, through clap. Out: text and flags. Does not: check them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trapline::{By, Returns};

/// Which processes.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Targets")]
pub(crate) struct TypedTarget {
    /// Trace this process; may be given more than once.
    ///
    /// Without -p, -n and a command, every process is traced that maps a file of the probes and that you may
    /// trace (with --all, also later ones). Only watch needs one of the three.
    #[arg(short = 'p', long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pids: Vec<u32>,
    /// Trace all processes of this name; may be given more than once
    #[arg(short = 'n', long = "name", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Trace every process that maps a file of the probes, now and later.
    ///
    /// A process of later is held until it is probed, before it runs anything of the file. Needs root. A name without
    /// a slash is looked for in PATH, in the loader's folders, and in the processes that are there.
    #[arg(long = "all", conflicts_with_all = ["pids", "names", "command", "words"])]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) among: TypedAmong,
    /// Run this command, and trace it from its start.
    ///
    /// The text is split into words as a shell does, with quotes; nothing is expanded. The command keeps standard
    /// output for itself: reports go to standard error, or to -o FILE.
    #[arg(short = 'c', long = "command", value_name = "CMD")]
    pub(crate) command: Option<String>,
    /// Follow fork and exec: trace the programs that the target runs, too
    #[arg(short = 'f', long = "follow")]
    pub(crate) follow: bool,
    /// Wait for functions that nobody has yet: a library that comes later is probed before it runs.
    ///
    /// -f and --all do so by themselves. Without this, a probe that finds nothing is an error.
    #[arg(long)]
    pub(crate) wait: bool,
    /// Run this command; the same as -c, word by word
    #[arg(last = true, value_name = "CMD", conflicts_with = "command")]
    pub(crate) words: Vec<OsString>,
}

/// Which of all processes are traced.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedAmong {
    /// Of all processes, now and later, trace those in this control group and below: a folder below /sys/fs/cgroup
    #[arg(long = "cgroup", value_name = "DIR", help_heading = "Targets")]
    pub(crate) groups: Vec<PathBuf>,
    /// Of all processes, now and later, trace those in this container: its name, POD, NAMESPACE/POD, or its id, 12
    /// digits or more
    #[arg(long = "container", value_name = "NAME", help_heading = "Targets")]
    pub(crate) containers: Vec<String>,
    /// Of all processes, now and later, trace those of this user: a number or a name
    #[arg(long = "uid", value_name = "USER", help_heading = "Targets")]
    pub(crate) users: Vec<String>,
    /// Of all processes, now and later, trace this one and those that descend from it
    #[arg(long = "tree", value_name = "PID", help_heading = "Targets")]
    pub(crate) roots: Vec<u32>,
}

/// The options of each tracing verb.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct Common {
    #[command(flatten)]
    pub(crate) target: TypedTarget,
    /// Print a report every INTERVAL: seconds, or with a unit (500ms, 2m)
    #[arg(short, long, value_name = "INTERVAL", help_heading = "Output")]
    pub(crate) interval: Option<String>,
    /// Stop after this time: seconds, or with a unit (500ms, 2m)
    #[arg(short, long, value_name = "SECONDS", help_heading = "Output")]
    pub(crate) duration: Option<String>,
    /// Print the time of day with each report
    #[arg(short = 'T', long, help_heading = "Output")]
    pub(crate) timestamps: bool,
    /// Print one JSON object a line; docs/guide/json.md has the fields
    #[arg(long, help_heading = "Output")]
    pub(crate) json: bool,
    /// Write to FILE, in the format of its suffix.
    ///
    /// All verbs have .json and text, which any other suffix means. Some have .csv, .html, .folded, .svg, .pb.gz,
    /// .perfetto-trace or .trapline; a suffix that the verb does not have is an error.
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub(crate) output: Option<PathBuf>,
    /// Print no closing summary and no notices
    #[arg(short, long, help_heading = "Output")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) patching: TypedPatching,
    /// Count by kernel uprobes where no jump fits.
    ///
    /// A hit there costs microseconds. Without this option such sites are left out, and the report names them.
    #[arg(long, help_heading = "Patching")]
    pub(crate) kernel_uprobes: bool,
}

/// How code is changed.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Patching")]
pub(crate) struct TypedPatching {
    /// Show the tactic for each site; change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Stop all threads while code changes; by default they run on
    #[arg(long)]
    pub(crate) strict: bool,
    /// Also move instructions that may fault.
    ///
    /// For programs that catch SIGSEGV or SIGBUS only to report the fault and end, such as redis. Not for programs that
    /// look up the address of a fault: the JVM, Go, .NET, WebAssembly.
    #[arg(long)]
    pub(crate) faults_are_fatal: bool,
}

/// Where a report goes, for verbs that print once.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Output")]
pub(crate) struct TypedSink {
    /// Print one JSON object a line; docs/guide/json.md has the fields
    #[arg(long)]
    pub(crate) json: bool,
    /// Write to FILE, as JSON if it ends in .json
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print no closing summary and no notices
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The calls that are meant: `--if`, `--tid`, `--sample`.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedFilter {
    /// Only calls for which EXPR holds, for example 'n > 4096'.
    ///
    /// EXPR is written as in C, over the names of arguments and tid; trace and hist also have ret, what was returned,
    /// and dur, how long the call took. docs/guide/filters.md has the grammar.
    #[arg(long = "if", value_name = "EXPR", allow_hyphen_values = true, help_heading = "Calls")]
    pub(crate) condition: Option<String>,
    /// Only this thread; may be given more than once
    #[arg(long = "tid", value_name = "TID", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Calls")]
    pub(crate) tids: Vec<u32>,
    /// Only one in N of the calls that pass, on each CPU
    #[arg(long, value_name = "1/N", help_heading = "Calls")]
    pub(crate) sample: Option<String>,
}

/// `--ret` and `--maxactive`.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedEnds {
    /// How the end of a call is seen [default: auto]
    #[arg(long, value_name = "FORM", value_enum, help_heading = "Calls")]
    pub(crate) ret: Option<TypedReturns>,
    /// Calls that can have a replaced return address at a time [default: 16384].
    ///
    /// The number is for all threads together. Calls beyond it are not timed, and count as missed. Each takes 97 bytes
    /// of the target's memory.
    #[arg(long, value_name = "CALLS", help_heading = "Calls")]
    pub(crate) maxactive: Option<u32>,
}

impl TypedEnds {
    /// Whether anything was typed.
    pub(crate) const fn any(&self) -> bool {
        self.ret.is_some() || self.maxactive.is_some()
    }
}

/// `--ret`
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypedReturns {
    /// Exits; but the return address if a call may end by a tail call, or not all exits can be patched
    Auto,
    /// All exits are patched; a tail call (a jump to another function) ends the call
    Exits,
    /// The return address is replaced; a tail call goes on until the other function returns
    Stack,
}

impl TypedReturns {
    pub(crate) const fn ready(self) -> Returns {
        match self {
            Self::Auto => Returns::Auto,
            Self::Exits => Returns::Exits,
            Self::Stack => Returns::Stack,
        }
    }
}

/// `--serve` and `--otlp`.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedServe {
    /// Offer metrics for Prometheus at http://ADDR/metrics.
    ///
    /// ADDR is PORT (for this machine alone), :PORT (for every host that reaches it) or HOST:PORT. Port 0 takes a free one.
    #[arg(long, value_name = "ADDR", help_heading = "Output")]
    pub(crate) serve: Option<String>,
    /// Send metrics to a collector by OTLP, for example http://localhost:4318.
    ///
    /// They are sent over HTTP every INTERVAL, by default 10 s, and at the end.
    #[arg(long, value_name = "URL", help_heading = "Output")]
    pub(crate) otlp: Option<String>,
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
    /// The one with this name.
    pub(crate) fn named(text: &str) -> Option<Self> {
        Self::from_str(text, false).ok()
    }
    pub(crate) const fn ready(self) -> By {
        match self {
            Self::Tid => By::Thread,
            Self::Comm => By::ThreadName,
            Self::Cpu => By::Cpu,
        }
    }
}
