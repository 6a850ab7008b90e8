//! `watch`, as clap reads it.

use clap::Args;

use super::help::{TRACED, sections};
use super::shared::{TypedSink, TypedTarget};

/// Accesses to a variable: when, by which thread and code, and which value
///
/// Reports each store to a variable, by the debug registers of the CPU, in all threads, those of now and those
/// that are made later. The target is never stopped. Each access costs it a trap, some microseconds; code that
/// does not touch the variable runs as fast as without.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedWatch {
    /// What to watch, for example counter, libfoo:table+16:4 or 0x555555558010:8
    #[arg(value_name = "PLACE", required = true)]
    pub(crate) places: Vec<String>,
    /// Print only the summary, no line for each access
    #[arg(long, help_heading = "Accesses")]
    pub(crate) count: bool,
    /// Only accesses for which EXPR holds, over value, old, tid, pid and cpu
    #[arg(long = "if", value_name = "EXPR", help_heading = "Accesses")]
    pub(crate) filter: Option<String>,
    /// Stop at the first access for which EXPR holds
    #[arg(long, value_name = "EXPR", help_heading = "Accesses")]
    pub(crate) until: Option<String>,
    /// Print the callers of each access, by frame pointers
    #[arg(long, help_heading = "Accesses")]
    pub(crate) stack: bool,
    /// Let places take turns if there are more than debug registers; SLICE is 100ms without =SLICE
    #[arg(long, value_name = "SLICE", num_args = 0..=1, require_equals = true, default_missing_value = "100ms",
          help_heading = "Accesses")]
    pub(crate) rotate: Option<String>,
    /// Trace no thread, also where the machine may lose a trap's reason; such a trap ends the program
    #[arg(long, help_heading = "Accesses")]
    pub(crate) no_shield: bool,
    #[command(flatten)]
    pub(crate) target: TypedTarget,
    /// Print the summary so far every INTERVAL: seconds, or with a unit (500ms, 2m)
    #[arg(short, long, value_name = "INTERVAL", help_heading = "Output")]
    pub(crate) interval: Option<String>,
    /// Stop after this time: seconds, or with a unit (500ms, 2m)
    #[arg(short, long, value_name = "SECONDS", help_heading = "Output")]
    pub(crate) duration: Option<String>,
    /// Print the time of day with each access, instead of seconds since the start
    #[arg(short = 'T', long, help_heading = "Output")]
    pub(crate) timestamps: bool,
    #[command(flatten)]
    pub(crate) sink: TypedSink,
}

const MORE: &str = "\
Places:
  [FILE:]NAME[+OFFSET][:LEN][:w|rw|x]  or  0xADDRESS[:LEN][:w|rw|x]
  NAME is a symbol, or with debug information a variable with fields and
  indexes. w, the default, is for stores, rw for loads too, x for
  execution. A debug register holds 1, 2, 4 or 8 aligned bytes; a CPU has
  four.

What it prints:
  0.000219 worker-1/6512 write shop.orders handle+0x7 shop.c:34  8 -> 9
  Seconds since the start, thread, kind of access, place, function, source
  line, value before and after. ? stands behind a value that is not certain
  to be the one that this access found or left.

Examples:
  Which code writes a variable?
    trapline watch -p PID server.stat_numcommands
  Only a summary, loads too:
    trapline watch --count -d 1 -p PID 'customers[0].level:rw'
  The first store of a value, with its callers:
    trapline watch --stack --if 'value < 0' --until 'value < 0' -p PID n
  More places than debug registers:
    trapline watch --rotate -p PID a b c d e
  A command from its first instruction:
    trapline watch shop.orders -- ./shop";
