//! `top`, as typed and as ready values.

use std::time::Duration;

use clap::Args;
use trapline::ProbeSpec;

use super::command::Run;
use super::error::UsageError;
use super::ready::{is_function, run};
use super::sink::TABLES;
use super::typed::Common;
use crate::top::view::Column;

/// `top`, as typed.
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

/// `top`, ready.
#[derive(Debug)]
pub(crate) struct Top {
    /// What and how; with an interval.
    pub(crate) run: Run,
    /// With durations.
    pub(crate) timed: bool,
    /// The column to sort by.
    pub(crate) sort: Column,
}

/// Between two samples, if not said otherwise.
const INTERVAL: Duration = Duration::from_secs(1);

/// Checks and converts.
pub(crate) fn top(typed: TypedTop) -> Result<Top, UsageError> {
    let mut run = run(&typed.probes, typed.common, TABLES)?;
    run.interval = run.interval.or(Some(INTERVAL));
    let wrong = |probe: &&ProbeSpec| typed.lat && !is_function(probe);
    if let Some(probe) = run.probes.iter().find(wrong) {
        return Err(UsageError::NotAFunction(probe.text.clone()));
    }
    if typed.sort.is_timed() && !typed.lat {
        return Err(UsageError::Conflict("--sort p50 and p99 are for timed calls: add --lat"));
    }
    Ok(Top { run, timed: typed.lat, sort: typed.sort })
}
