//! `watch`, as clap reads it.

use clap::Args;

use super::shared::{TypedSink, TypedTarget};

/// `watch`
#[derive(Args, Debug, Clone)]
#[command(after_help = WATCH)]
pub(crate) struct TypedWatch {
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
    pub(crate) sink: TypedSink,
}

const WATCH: &str = "\
A place is [FILE:]NAME[+OFFSET][:LEN][:w|rw|x] or 0xADDRESS[:LEN][:w|rw|x]. NAME is a symbol, or a variable with fields and
indexes (server.clients[2].count) where there is debug information. w, the default, is for stores, rw for loads too, x for
execution. A debug register holds 1, 2, 4 or 8 aligned bytes; there are four.

The target is never stopped; each access costs it a trap, some microseconds. A `?` stands behind a value that is not
certain to be the one that this access found or left.";
