//! COST-1: `uprobe` and `uretprobe`: the cost of a hit, in interleaved rounds of these ways:
//!
//! - bare and control;
//! - ours (for returns: exits patched, and return trampolines), and ours without rseq;
//! - a process that probes itself (for returns: a handler of returns alone, and sessions);
//! - kernel (`kernel` times calls, `kernel-return` counts returns).

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use trapline::Returns;

use crate::x86_64::kernel::Kernel;
use crate::x86_64::ours::Ours;
use crate::x86_64::row::{Figures, Row, quartiles, shared};
use crate::x86_64::victim::{Load, Sites, Victim};

/// Number and length of the measurements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Seconds of one figure, over all rounds.
    pub(crate) seconds: f64,
    pub(crate) threads: Option<usize>,
}

/// Which of the two benches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bench {
    /// Counting at entry.
    Uprobe,
    /// Entry to return.
    Uretprobe,
}

/// Cases, and the number of functions that each probes.
const CASES: [(&str, usize); 8] = [
    ("nop", trapline_bench::functions::COPIES),
    ("push", trapline_bench::functions::COPIES),
    ("endbr64", trapline_bench::functions::COPIES),
    ("sub", trapline_bench::functions::COPIES),
    ("mov", trapline_bench::functions::COPIES),
    ("ret", trapline_bench::functions::COPIES),
    ("generic", trapline_bench::functions::COPIES),
    ("walk", trapline_bench::functions::WALK),
];
/// Layouts of `push` that admit no plain jump, and the tactic that each should lead to.
const NARROW: [(&str, &str); 2] = [("push_short", "short"), ("push_pun", "pun")];
/// Largest variation of the control at which rows of several threads are still worth something.
const STEADY: f64 = 0.05;
/// Times that a disturbed case is measured again.
const RETRIES: usize = 3;

/// Samples of one case, by `how`, number of threads, and whether each thread has its own function.
type Samples = BTreeMap<(String, usize, bool), Result<Vec<f64>, String>>;

/// Attaches to a case's first functions in a process; the last argument is their number.
type Attach = fn(u32, &Sites) -> Result<Kernel>;

impl Bench {
    fn name(self) -> &'static str {
        match self {
            Self::Uprobe => "uprobe",
            Self::Uretprobe => "uretprobe",
        }
    }
    fn attach(self, pid: u32, case: &str, limit: usize) -> Result<Ours> {
        match self {
            Self::Uprobe => Ours::count(pid, case, limit),
            Self::Uretprobe => Ours::time(pid, case, limit, Returns::Exits),
        }
    }
    /// The kernel's probes, with the names that rows give them.
    fn kernels(self) -> &'static [(&'static str, Attach)] {
        match self {
            Self::Uprobe => &[("kernel", Kernel::count)],
            Self::Uretprobe => &[("kernel", Kernel::latency), ("kernel-return", Kernel::returns)],
        }
    }
    /// Handlers in a process that probes itself.
    fn inside(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Uprobe => crate::x86_64::inside::ENTRIES,
            Self::Uretprobe => crate::x86_64::inside::RETURNS,
        }
    }
    /// Name that rows give to our own way.
    fn how(self, tactic: &str) -> String {
        if self == Self::Uretprobe { "exits".into() } else { tactic.into() }
    }
}

/// Emits each row as soon as it is ready.
pub(crate) fn run(
    bench: Bench,
    effort: Effort,
    only: Option<&str>,
    mut emit: impl FnMut(&Row) -> Result<()>,
) -> Result<()> {
    let wanted = |case: &str| only.is_none_or(|only| only == case);
    ensure!(
        CASES.iter().any(|(case, _)| wanted(case)),
        "no function begins with `{}`",
        only.unwrap_or_default()
    );
    for (case, sites) in CASES.into_iter().filter(|(case, _)| wanted(case)) {
        for row in case_rows(bench, case, sites, effort, true)? {
            emit(&row)?;
        }
    }
    if bench == Bench::Uprobe && wanted("push") {
        for (case, hoped) in NARROW {
            for mut row in case_rows(bench, case, trapline_bench::functions::COPIES, effort, false)? {
                let ours = !["none", "control", "kernel", "lock-add"].contains(&row.how.as_str());
                row.case = "push".into();
                if ours {
                    if row.how != hoped {
                        row.figures =
                            Figures::Skipped { skipped: format!("the plan was {}, not {hoped}", row.how) };
                        row.how = hoped.into();
                    }
                    emit(&row)?;
                }
            }
        }
    }
    Ok(())
}

/// One thread and two; or so many as `only` says. Not more functions than there are of a case.
fn loads(only: Option<usize>, case: &str) -> Vec<Load> {
    let several = only.unwrap_or(2);
    let own = several > 1 && several <= trapline_bench::functions::COPIES && case != "walk";
    [(1, false, several == 1 || only.is_none()), (several, false, several > 1), (several, true, own)]
        .into_iter()
        .filter_map(|(threads, own, wanted)| wanted.then_some(Load { threads, own }))
        .collect()
}

fn case_rows(bench: Bench, case: &str, sites: usize, effort: Effort, full: bool) -> Result<Vec<Row>> {
    let loads = loads(effort.threads, case);
    for attempt in 1.. {
        let samples = sample(bench, case, sites, effort, &loads, full)?;
        let unsteady = loads.iter().filter(|load| load.threads > 1).find_map(|load| {
            let control = samples.get(&("control".to_owned(), load.threads, load.own))?.as_ref().ok()?;
            let (low, median, high) = quartiles(control);
            ((high - low) / median > STEADY).then_some((high - low) / median)
        });
        if unsteady.is_none() || attempt == RETRIES {
            return Ok(rows(bench, case, &samples, unsteady));
        }
    }
    Ok(Vec::new())
}

/// One attempt: every round measures every `how` once, one after the other.
fn sample(
    bench: Bench,
    case: &str,
    sites: usize,
    effort: Effort,
    loads: &[Load],
    full: bool,
) -> Result<Samples> {
    let mut victim = Victim::start(true)?;
    let mut without_rseq = Victim::start(false)?;
    // One process for each way, because a site keeps the way that was chosen first.
    let mut inside: Vec<Victim> = Vec::new();
    let ways = if full { bench.inside() } else { &[] };
    for _ in ways {
        inside.push(Victim::inside()?);
    }
    let time = Duration::from_secs_f64(effort.seconds / effort.rounds as f64);
    let mut samples = Samples::new();
    for _ in 0..effort.rounds {
        take(&mut samples, &mut victim, "none", case, loads, false, time)?;
        take(&mut samples, &mut victim, "control", case, loads, true, time)?;
        match bench.attach(victim.pid(), case, sites) {
            Err(error) => fail(&mut samples, "jump", loads, &error),
            Ok(ours) => {
                let how = bench.how(ours.tactic());
                take(&mut samples, &mut victim, &how, case, loads, false, time)?;
                ensure!(ours.finish()?.hits > 0, "{case} {how}: nothing was counted");
            }
        }
        if !full {
            continue;
        }
        if bench == Bench::Uretprobe {
            match Ours::time(victim.pid(), case, sites, Returns::Stack) {
                Err(error) => fail(&mut samples, "slot", loads, &error),
                Ok(ours) => {
                    take(&mut samples, &mut victim, "slot", case, loads, false, time)?;
                    ensure!(ours.finish()?.hits > 0, "{case} slot: nothing was counted");
                }
            }
        }
        match bench.attach(without_rseq.pid(), case, sites) {
            Err(error) => fail(&mut samples, "lock-add", loads, &error),
            Ok(ours) => {
                take(&mut samples, &mut without_rseq, "lock-add", case, loads, false, time)?;
                ensure!(ours.finish()?.hits > 0, "{case} lock-add: nothing was counted");
            }
        }
        for (victim, &(how, asked)) in inside.iter_mut().zip(ways) {
            match victim.probe(case, sites, asked) {
                Err(error) => fail(&mut samples, how, loads, &error),
                Ok(_) => {
                    take(&mut samples, victim, how, case, loads, false, time)?;
                    victim.unprobe()?;
                }
            }
        }
        for &(how, attach) in bench.kernels() {
            match attach(victim.pid(), &Sites::of(case, sites)?) {
                Err(error) => fail(&mut samples, how, loads, &error),
                Ok(kernel) => {
                    take(&mut samples, &mut victim, how, case, loads, false, time)?;
                    ensure!(kernel.hits()? > 0, "{case} {how}: nothing was counted");
                }
            }
        }
    }
    Ok(samples)
}

fn take(
    samples: &mut Samples,
    victim: &mut Victim,
    how: &str,
    case: &str,
    loads: &[Load],
    control: bool,
    time: Duration,
) -> Result<()> {
    for load in loads {
        let ns = victim.measure(case, *load, control, time)?;
        let entry = samples.entry((how.to_owned(), load.threads, load.own)).or_insert_with(|| Ok(Vec::new()));
        if let Ok(list) = entry {
            list.push(ns);
        }
    }
    Ok(())
}

fn fail(samples: &mut Samples, how: &str, loads: &[Load], error: &anyhow::Error) {
    for load in loads {
        samples.insert((how.to_owned(), load.threads, load.own), Err(format!("{error:#}")));
    }
}

fn rows(bench: Bench, case: &str, samples: &Samples, unsteady: Option<f64>) -> Vec<Row> {
    let bare = |threads: usize, own: bool| {
        let list = samples.get(&("none".to_owned(), threads, own))?.as_ref().ok()?;
        Some(quartiles(list).1)
    };
    let pair = |how: &str, own: bool| {
        let list = |threads, own| samples.get(&(how.to_owned(), threads, own))?.as_deref().ok();
        Some([list(1, false)?, list(2, own)?])
    };
    let row = |((how, threads, own), result): (&(String, usize, bool), &Result<Vec<f64>, String>)| {
        let figures = match (result, unsteady) {
            (Err(why), _) => Figures::Skipped { skipped: why.clone() },
            (Ok(_), Some(by)) if *threads > 1 => {
                Figures::Skipped { skipped: format!("the control varied by {:.0} %", by * 100.0) }
            }
            (Ok(list), _) => {
                let (low_ns, ns, high_ns) = quartiles(list);
                let added_ns = ns - bare(*threads, *own).unwrap_or(f64::NAN);
                let mops = *threads as f64 * 1e3 / ns;
                Figures::Hit { ns, added_ns, mops, low_ns, high_ns, rounds: list.len() }
            }
        };
        let mut row = Row::new(bench.name(), case, how, *threads, *own, figures);
        // Also where the control varied: each round is compared with the control of the same round.
        if *threads > 1 {
            row.shared =
                pair(how, *own).zip(pair("control", *own)).map(|(these, control)| shared(these, control));
        }
        row
    };
    let order = |how: &str| ["none", "control"].iter().position(|first| *first == how).unwrap_or(2);
    let mut rows: Vec<Row> = samples.iter().map(row).collect();
    rows.sort_by_key(|row| (row.threads, row.sharing == "own", order(&row.how)));
    rows
}
