//! The benches on x86-64. They measure times.
//!
//! In: the command line. Out: rows.

mod attach;
mod breakpoint;
mod hits;
mod inside;
mod kernel;
mod lookup;
mod others;
mod ours;
mod pool;
mod record;
mod row;
mod toggle;
mod trap;
mod victim;

use anyhow::Result;

use crate::{Args, Name, Sink};
use hits::{Bench, Effort};

/// What some benches take beside.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    breakpoint: breakpoint::Options,
    #[command(flatten)]
    pool: pool::Options,
    #[command(flatten)]
    writes: toggle::Writes,
}

/// Runs a name that is no bench but that a bench starts as a process.
pub(crate) fn serve(name: Name) -> Option<Result<()>> {
    match name {
        Name::Victim => Some(victim::serve()),
        Name::Churner => {
            lookup::churner();
            None
        }
        _ => None,
    }
}

/// Emits the rows of the bench.
pub(crate) fn run(args: &Args, sink: &mut Sink) -> Result<()> {
    let effort = Effort { rounds: args.rounds.max(1), seconds: args.seconds, threads: args.threads };
    let (only, options) = (args.only.as_deref(), args.options);
    match args.name {
        Name::Uprobe => hits::run(Bench::Uprobe, effort, only, |row| sink.take(row)),
        Name::Uretprobe => hits::run(Bench::Uretprobe, effort, only, |row| sink.take(row)),
        Name::Record => record::run(effort, only, |row| sink.take(row)),
        Name::Attach => attach::run(effort, |row| sink.take(row)),
        Name::Toggle => toggle::run(options.writes, |row| sink.take(row)),
        Name::Breakpoint => breakpoint::run(options.breakpoint, effort, |row| sink.take(row)),
        Name::Pool => pool::run(options.pool, effort, sink),
        Name::Trap => trap::run(effort, |row| sink.take(row)),
        Name::Lookup => lookup::run(effort, |row| sink.take(row)),
        Name::Churn => lookup::run_churn(effort, only, |row| sink.take(row)),
        Name::Victim | Name::Churner => Ok(()),
    }
}
