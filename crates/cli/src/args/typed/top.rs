//! `top`, as clap reads it.

use clap::Args;

use super::help::{TRACED, sections};
use super::shared::Common;
use crate::top::view::Column;

/// A live table of what is called most now: rates and percentiles
///
/// Draws a table anew each second: which functions are called most at the moment, and with --lat how long they
/// take. If standard input or output is no terminal, with -o, or with a command, a table is printed each
/// interval instead.
#[derive(Args, Debug, Clone)]
#[command(after_long_help = sections(MORE, TRACED))]
pub(crate) struct TypedTop {
    /// What to count, for example 'libssl:SSL_*'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Time the calls of functions too: p50 and p99 of each interval
    #[arg(long, help_heading = "Table")]
    pub(crate) lat: bool,
    /// Sort by this column at first
    #[arg(long, value_name = "COLUMN", default_value = "rate", help_heading = "Table")]
    pub(crate) sort: Column,
    #[command(flatten)]
    pub(crate) common: Common,
}

const MORE: &str = "\
What it prints:
  HITS/S or CALLS/S  Rate in the last interval.
  HITS or CALLS      Since attach.
  P50 P99            With --lat: half, or 99 %, of the calls of the last
                     interval took at most so long.
  RATE BEFORE        The rate of the intervals before, newest at the right.
  FUNCTION           The function.

Keys:
  < > left right     Choose the column to sort by.
  r                  Reverse the order.
  /                  Filter by name.
  space              Stand still, until the next space.
  + -                Shorter and longer intervals, 125 ms to 64 s.
  up down PgUp PgDn Home End
                     Move through the rows.
  q Ctrl-C           End.

Examples:
  Functions of a library, by rate:
    trapline top -p PID 'libssl:SSL_*'
  With durations:
    trapline top --lat -p PID handle price store
  Ten tables, without a terminal:
    trapline top -d 10 -p PID 'shop:*' | cat";
