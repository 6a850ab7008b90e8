//! `breakpoint`: the cost of accounting for hardware breakpoints, with the options and the output of `perf
//! bench breakpoint`.
//!
//! Cases:
//! - `thread` creates and joins threads, each with breakpoints of its own. They are perf events that the
//!   kernel lets new threads inherit, or (`events` false) the accounting alone.
//! - `enable` switches one event off and on under many threads.
//! - `accounting` makes no system call. It measures reserve and release alone: by one thread and more, on
//!   machines of one CPU and more, beside few tasks and many.
//!
//! `how` is one of: `none` (no breakpoints at all), `off` (breakpoints without accounting), `ours`, and the
//! baselines `rwlock` and `mutex`, which pass the same tests as ours. `control` is ours with an accounting
//! for each thread, so nothing is shared. Over perf events, every row but `none` contains the kernel's own
//! accounting.

mod accounting;
mod enable;
mod how;
mod mutex;
mod row;
mod rwlock;
mod thread;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::x86_64::hits::Effort;
use how::Load;
use row::BreakpointRow;

/// What `breakpoint` takes beside.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Which case of `breakpoint`; without one, all of them, as large as in the seed.
    case: Option<Case>,
    /// Breakpoints of each thread [default: 1].
    #[arg(short, long)]
    breakpoints: Option<usize>,
    /// Threads that create threads (thread), or that sleep meanwhile (enable) [default: 1].
    #[arg(short, long, visible_alias = "passive")]
    parallelism: Option<usize>,
    /// Threads that each of them creates at a time [default: 1].
    #[arg(short = 't', long = "nthreads")]
    created: Option<usize>,
    /// Threads that run meanwhile (enable) [default: 0].
    #[arg(short, long)]
    active: Option<usize>,
    /// How often [default: 10].
    #[arg(short, long)]
    repeat: Option<usize>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    /// Creates and joins threads.
    Thread,
    /// Disables and enables one breakpoint.
    Enable,
    /// Reserves and releases, without system calls.
    Accounting,
}

impl Options {
    /// Sizes: perf's own defaults where a case was named, those of the reference run where none was.
    fn load(self, breakpoints: usize, parallelism: usize, threads: usize, repeat: usize) -> Load {
        let or =
            |given: Option<usize>, perf, seed| given.unwrap_or(if self.case.is_some() { perf } else { seed });
        Load {
            breakpoints: or(self.breakpoints, 1, breakpoints),
            parallelism: or(self.parallelism, 1, parallelism),
            threads: or(self.created, 1, threads),
            active: or(self.active, 0, 2),
            repeat: or(self.repeat, 10, repeat),
        }
    }
}

/// All rows of the cases asked for.
pub(crate) fn run(
    options: Options,
    effort: Effort,
    mut emit: impl FnMut(&BreakpointRow) -> Result<()>,
) -> Result<()> {
    let wanted = |case| options.case.is_none_or(|only| only == case);
    if wanted(Case::Thread) {
        thread::run(options.load(4, 64, 64, 30), effort, &mut emit)?;
    }
    if wanted(Case::Enable) {
        enable::run(options.load(1, 64, 0, 1000), effort, &mut emit)?;
    }
    if wanted(Case::Accounting) {
        let breakpoints = options.breakpoints.unwrap_or(4);
        accounting::run(breakpoints, effort, &mut emit)?;
    }
    Ok(())
}
