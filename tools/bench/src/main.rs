//! `trapline-bench NAME`: the cost of a hit, an attach and a detach, beside the kernel's uprobes in the same
//! run. On arm64: the instructions of a hit.
//!
//! Input: the name of a bench. Output: one row a line, as text or JSON; with `--save` also stored in a
//! folder.
//! Does not: extrapolate, subtract the harness (the `none` row stands beside), or show a row that it could
//! not measure as 0.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod line;
mod runs;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, ValueEnum};

#[cfg(target_arch = "aarch64")]
use aarch64 as native;
#[cfg(target_arch = "x86_64")]
use x86_64 as native;

/// Measures Trapline beside the kernel's uprobes.
#[derive(Parser, Debug)]
#[command(name = "trapline-bench", version)]
struct Args {
    /// What to measure.
    name: Name,
    #[command(flatten)]
    options: native::Options,
    /// Only rows with this many threads.
    #[arg(long)]
    threads: Option<usize>,
    /// `uprobe` and `uretprobe`: only functions that begin so (`nop`, `push`, `endbr64`, …); `record`: only this case; `churn`: only this row.
    #[arg(long)]
    only: Option<String>,
    /// Seconds of measuring for each row, over all rounds.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Interleaved rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
    /// Keep the run in a folder below this one, named for date and processor.
    #[arg(long)]
    save: Option<PathBuf>,
}

/// What can be measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// Counting at a function's entry.
    Uprobe,
    /// From entry to return.
    Uretprobe,
    /// A record of each call.
    Record,
    /// Attaching and detaching 1 to 10,000 sites.
    Attach,
    /// Code changed under threads that run it: is every write seen whole?
    Toggle,
    /// Accounting for hardware breakpoints, and the kernel's cost of them.
    Breakpoint,
    /// The pool of return instances, beside those of the seed.
    Pool,
    /// A hit on the trap path, beside a bare SIGTRAP.
    Trap,
    /// From an address to its probe, beside the seeds' ways.
    Lookup,
    /// Lookups while an address space changes.
    Churn,
    /// Changes its own address space (started by `churn`).
    #[value(hide = true)]
    Churner,
    /// The measured process (started by the others).
    #[value(hide = true)]
    Victim,
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(served) = native::serve(args.name) {
        return served;
    }
    let mut sink = Sink { json: args.json, run: args.save.as_deref().map(runs::Run::create).transpose()? };
    native::run(&args, &mut sink)
}

/// Prints rows, and stores them if asked.
#[derive(Debug)]
struct Sink {
    json: bool,
    run: Option<runs::Run>,
}

impl Sink {
    fn take(&mut self, row: &impl line::Line) -> Result<()> {
        let text = if self.json { serde_json::to_string(row)? } else { row.text() };
        println!("{text}");
        self.run.as_mut().map_or(Ok(()), |run| run.keep(row))
    }
}
