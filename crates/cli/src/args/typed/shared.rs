//! Options that several verbs have.
//!
//! In: words, through clap. Out: text and flags. Does not: check them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trapline::{By, Returns};

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

/// The options of each tracing verb.
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

/// Where a report goes, for verbs that print once.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedSink {
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

/// The calls that are meant: `--if`, `--tid`, `--sample`.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedFilter {
    /// Only calls for which EXPR holds, over the arguments' names and tid, and ret and dur where returns are waited for; see docs/guide/filters.md
    #[arg(long = "if", value_name = "EXPR", allow_hyphen_values = true, help_heading = "Calls")]
    pub(crate) condition: Option<String>,
    /// Only this thread (may be given more than once)
    #[arg(long = "tid", value_name = "TID", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Calls")]
    pub(crate) tids: Vec<u32>,
    /// Of the calls that pass, one in N on each CPU
    #[arg(long, value_name = "1/N", help_heading = "Calls")]
    pub(crate) sample: Option<String>,
}

/// `--ret` and `--maxactive`.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct TypedEnds {
    /// How the end of a call is seen: its exits patched, or its return address on the stack replaced; then calls that end by a jump to
    /// another function last until that returns. auto: exits; the return address where one of them is such a jump, or they cannot all be
    /// found or patched, if all that unwind stacks there can be told [default: auto]
    #[arg(long, value_name = "FORM", value_enum, help_heading = "Calls")]
    pub(crate) ret: Option<TypedReturns>,
    /// Calls whose return address can be replaced at a time, in all threads; others are missed, and counted. Each takes 97 bytes of
    /// the process [default: 16384]
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
    Auto,
    Exits,
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
    /// Offer counts and histograms as Prometheus metrics at http://ADDR/metrics: PORT for this machine alone, :PORT for all who
    /// can reach it, or HOST:PORT; port 0 takes a free one
    #[arg(long, value_name = "ADDR", help_heading = "Output")]
    pub(crate) serve: Option<String>,
    /// Send the same to a collector by OTLP over HTTP, for example http://localhost:4318; every INTERVAL (10 s), and at the end
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
