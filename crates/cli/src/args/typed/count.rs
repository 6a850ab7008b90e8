//! `count`, as clap reads it.

use clap::Args;

use super::help::{TRACED, sections};
use super::shared::{Common, TypedBy, TypedServe};

/// Hits and hits per second of each function
///
/// Puts a counter on each function that PROBE names, and prints a table of hits. The numbers are exact: no hit
/// is sampled or estimated. Counting goes on until Ctrl-C, until --duration has passed, or until the target
/// ends. A hit costs the target one to three nanoseconds.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedCount {
    /// What to count, for example 'libssl:SSL_*'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Split the hits of each function; tid and comm cost more a hit than cpu
    #[arg(long, value_name = "WHAT", help_heading = "Output")]
    pub(crate) by: Option<TypedBy>,
    #[command(flatten)]
    pub(crate) serve: TypedServe,
    #[command(flatten)]
    pub(crate) common: Common,
}

const MORE: &str = "\
What it prints:
  HITS      Calls since attach; in reports of -i, since the last one.
  HITS/S    Hits per second.
  TID COMM CPU THREADS
            With --by: the thread, its name, the CPU, how many threads.
  FUNCTION  The function, with its file if that is not the program itself.

Examples:
  Functions of a library in a running process, for two seconds:
    trapline count -d 2 -p PID 'libssl:SSL_*'
  A command from its start:
    trapline count 'libsqlite3:sqlite3_*' -- sqlite3 :memory: 'select 1+1'
  A table every second, with the time of day:
    trapline count -T -i 1 -p PID handle store
  Hits by thread name:
    trapline count --by comm -p PID handle
  Exits, and one instruction:
    trapline count -p PID uretprobe:shop:handle handle+7
  A row for each function and interval, for other programs:
    trapline count -i 1 -o hits.csv -p PID handle store";
