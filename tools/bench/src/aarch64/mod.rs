//! `uprobe` and `uretprobe` on arm64: instructions per hit, for each way to do a hit. The cases are those of
//! the table in LKML 20240814080356.2639544-1 (nop, push, ret; as uprobe and uretprobe), and a deeper push.
//!
//! In: the command line. Out: a row for each way, beside the kernel's uprobe on the same function. The
//! processor counts the instructions. The count is exact on an emulator that counts (`-icount`); rows say so.
//! Figures from an emulator mean something as ratios only. The hits of a row stand between `brk #0x700 + ROW`
//! and `brk #0x6ff`, so a program that watches the processor can attribute the row's exceptions too (`cargo
//! xtask arm64-system`).
//! Does not: measure time.

mod bed;
mod counter;
mod row;
mod uprobe;

use anyhow::{Result, bail};

use crate::{Args, Name, Sink};
use bed::{Bed, CASES, Case, HitForm};
use counter::{Counter, mark};
use row::{Row, with_ratios};
use uprobe::Uprobe;

/// What is asked for beside.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The number of the first row, for a person who watches the processor.
    #[arg(long, default_value_t = 1)]
    first_row: u64,
    /// What would be simulated is not: what distinguishes the two must notice.
    #[arg(long, value_name = "WAY")]
    no_simulation: Option<Instead>,
}

/// How else what would be simulated is done.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Instead {
    /// Stepped over in a copy, as a kernel does that simulates nothing.
    Stepped,
    /// In a copy that jumps back, as ours would be done.
    OutOfLine,
}

impl Options {
    /// The way that replaces one of [`WAYS`], as `--no-simulation` asks.
    fn way(self, way: HitForm) -> HitForm {
        match (way, self.no_simulation) {
            (HitForm::Simulated, Some(Instead::Stepped)) => HitForm::Stepped,
            (HitForm::Simulated, Some(Instead::OutOfLine)) => HitForm::Copied,
            _ => way,
        }
    }
}

/// Hits of a row, and of each round that is counted: so few that an interrupt falls into few rounds.
const HITS: u64 = 100;
const ROUNDS: usize = 25;

/// Our own ways, with the names that rows give them.
const WAYS: [(&str, HitForm); 5] = [
    ("simulated", HitForm::Simulated),
    ("out-of-line", HitForm::Copied),
    ("stepped", HitForm::Stepped),
    ("jump", HitForm::Jumped),
    ("jump, general registers only", HitForm::JumpedGeneral),
];

/// Names that are no bench but that a bench starts as a process: none on arm64.
pub(crate) const fn serve(_: Name) -> Option<Result<()>> {
    None
}

/// Emits the rows of the bench.
pub(crate) fn run(args: &Args, sink: &mut Sink) -> Result<()> {
    let (bench, returns) = match args.name {
        Name::Uprobe => ("uprobe", false),
        Name::Uretprobe => ("uretprobe", true),
        name => {
            bail!(
                "{name:?} measures times or x86-64 code: it has no arm64 form; there are uprobe and uretprobe"
            )
        }
    };
    if args.threads.is_some_and(|threads| threads != 1) {
        bail!("instructions are counted of one thread");
    }
    let wanted = |case: &&Case| args.only.as_deref().is_none_or(|only| only == case.name);
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        bail!("no function begins with `{}`", args.only.as_deref().unwrap_or_default());
    }
    let counters = [Counter::new(false)?, Counter::new(true)?];
    let mut bed = Bed::new()?;
    let mut number = args.options.first_row;
    for case in cases {
        let mut measured = Measured { bench, case: case.name, counters: &counters, bare: [0.0; 2] };
        let plain = bed.plain(case)?;
        measured.bare = measured.instructions(plain);
        let mut rows = vec![measured.row("none", plain, &mut number)?];
        rows.push(match Uprobe::new(&format!("bench_{bench}_{}", case.name), case.addr(), returns) {
            Ok(probe) => measured.row("kernel", probe.addr(), &mut number)?,
            Err(why) => Row::skipped(bench, case.name, "kernel", format!("{why:#}")),
        });
        for (how, way) in WAYS {
            rows.push(match bed.probed(case, returns, args.options.way(way)) {
                Ok(at) => {
                    let row = measured.row(how, at, &mut number)?;
                    anyhow::ensure!(bed.hits() > HITS, "{bench}-{} {how}: nothing was counted", case.name);
                    row
                }
                Err(why) => Row::skipped(bench, case.name, how, format!("{why:#}")),
            });
        }
        with_ratios(&mut rows);
        rows.iter().try_for_each(|row| sink.take(row))?;
    }
    Ok(())
}

/// What all rows of one case have in common.
struct Measured<'a> {
    bench: &'static str,
    case: &'static str,
    counters: &'a [Counter; 2],
    /// Instructions of a call without a probe.
    bare: [f64; 2],
}

impl Measured<'_> {
    /// Instructions of one call of the function at `at`: all, and those of user space. The least of several
    /// rounds, as interrupts disturb some.
    fn instructions(&self, at: u64) -> [f64; 2] {
        [0, 1].map(|which| {
            let counter: &Counter = &self.counters[which];
            let round = |_| counter.of(|| (0..HITS).for_each(|round| _ = bed::call(at, round)));
            (0..ROUNDS).map(round).min().unwrap_or(0) as f64 / HITS as f64
        })
    }
    fn row(&self, how: &'static str, at: u64, number: &mut u64) -> Result<Row> {
        let [all, user] = self.instructions(at);
        mark(counter::BEGIN + *number)?;
        (0..HITS).for_each(|round| _ = bed::call(at, round));
        mark(counter::END)?;
        let row =
            Row::new(self.bench, self.case, how, (*number, HITS), [all - self.bare[0], user - self.bare[1]]);
        *number += 1;
        Ok(row)
    }
}
