//! `top`, as clap reads it.

use clap::Args;

use super::shared::Common;
use crate::top::view::Column;

/// `top`
#[derive(Args, Debug, Clone)]
#[command(after_help = HELP)]
pub(crate) struct TypedTop {
    /// Probes, for example 'libssl:SSL_*'
    #[arg(value_name = "PROBE", required = true)]
    pub(crate) probes: Vec<String>,
    /// Time calls too, of functions: p50 and p99 of each interval
    #[arg(long, help_heading = "Table")]
    pub(crate) lat: bool,
    /// Sort by this column first
    #[arg(long, value_name = "COLUMN", default_value = "rate", help_heading = "Table")]
    pub(crate) sort: Column,
    #[command(flatten)]
    pub(crate) common: Common,
}

const HELP: &str = "\
Keys: < and > or the arrows choose the column to sort by, r turns it round, / filters by name, space stands still, + and - change the
interval (1 s, or -i), up, down, PgUp, PgDn, Home and End move, q quits.

Without a terminal on standard input and output, with -o, or with a command that was launched here, whose terminal it is: a table each
interval.";
