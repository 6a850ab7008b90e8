//! `pool`: the cost of taking a return instance and putting it back, with the tables of the reference design,
//! and the ten cases of the kernel's own test of its pool.
//!
//! Cases: `throughput`, as fast as possible, and `emulation`, each object held for a microsecond. Each runs
//! with 1 thread, and with 1, 2 and 4 times as many as there are CPUs, with `maxactive` 10, 20 and 40.
//!
//! `how`: `none` a bare loop, `control` a counter for each thread, `ours` (all threads on one pool; `sharing`
//! own: one for each), `ours-sets` (ours as it is without rseq), `per-thread` the bound, and the baselines.
//! These pass the same tests as ours. All read the CPU's number in the same way, from the thread's rseq area.

mod array;
mod cases;
mod circular;
mod cpu_area;
mod drive;
mod freelist;
mod instances;
mod kind;
#[cfg(test)]
mod laws;
mod per_thread;
mod row;
mod scaling;
mod storm;
mod ticks;
#[cfg(test)]
mod write_set;

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use crate::Sink;
use crate::x86_64::hits::Effort;
use crate::x86_64::row::{Figures, quartiles};
use drive::{Load, Sample, cpus, drive};
use instances::Instances;
use kind::{Job, PoolKind};
use row::{EnduranceRow, PoolRow};
use storm::{Storm, Tally};

/// What `pool` takes beside.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Options {
    /// Only tables with this `maxactive` [default: 10, 20 and 40; endurance: 40].
    #[arg(long)]
    maxactive: Option<u32>,
    /// Only what more threads give: one and as many as there are CPUs, one behind the other in every round.
    #[arg(long)]
    scaling: bool,
    /// Only the ten cases, a second each.
    #[arg(long)]
    ten: bool,
    /// Only an endurance run of so many operations: threads that hand objects on, signals, migration, threads that end.
    #[arg(long)]
    endurance: Option<u64>,
}

/// The values of the reference tables.
const MAXACTIVE: [u32; 3] = [10, 20, 40];
/// Largest variation of the control that is accepted, as in the other tables.
const STEADY: f64 = 0.05;
const RETRIES: usize = 3;

impl Job for Load {
    type Out = Sample;
    fn with<P: Instances>(&self, pool: &P) -> Result<Sample> {
        drive(pool, *self)
    }
}

impl Job for Storm {
    type Out = Tally;
    fn with<P: Instances>(&self, pool: &P) -> Result<Tally> {
        self.over(pool)
    }
}

/// Runs all that the options ask for.
pub(crate) fn run(options: Options, effort: Effort, sink: &mut Sink) -> Result<()> {
    if let Some(operations) = options.endurance {
        return endurance(operations, options.maxactive.unwrap_or(40), effort, sink);
    }
    let asked: Vec<u32> =
        MAXACTIVE.into_iter().filter(|n| options.maxactive.is_none_or(|only| only == *n)).collect();
    if options.scaling {
        return asked.into_iter().try_for_each(|maxactive| scaling(maxactive, effort, sink));
    }
    if !options.ten {
        for case in ["throughput", "emulation"] {
            for &maxactive in &asked {
                for threads in threads(effort) {
                    rows(case, maxactive, threads, effort)?.iter().try_for_each(|row| sink.take(row))?;
                }
            }
        }
        asked.iter().try_for_each(|maxactive| scaling(*maxactive, effort, sink))?;
    }
    if options.maxactive.or(effort.threads.map(|n| n as u32)).is_some() && !options.ten {
        return Ok(());
    }
    let summary = cases::run(cpus(), Duration::from_secs(1), |row| sink.take(row))?;
    eprintln!("Summary of testcases:\n{}", summary.join("\n"));
    Ok(())
}

fn scaling(maxactive: u32, effort: Effort, sink: &mut Sink) -> Result<()> {
    let time = Duration::from_secs_f64(effort.seconds / effort.rounds as f64);
    scaling::rows(maxactive, time, effort.rounds)?.iter().try_for_each(|row| sink.take(row))
}

fn threads(effort: Effort) -> Vec<usize> {
    let cpus = cpus() as usize;
    let mut threads = vec![1, cpus, 2 * cpus, 3 * cpus, 4 * cpus];
    threads.dedup();
    threads.retain(|threads| effort.threads.is_none_or(|only| only == *threads));
    threads
}

/// One block of a table: every round measures every kind once, one after the other.
fn rows(case: &'static str, maxactive: u32, threads: usize, effort: Effort) -> Result<Vec<PoolRow>> {
    let held_tsc = if case == "emulation" { drive::tsc_per_us() } else { 0 };
    let time = Duration::from_secs_f64(effort.seconds / effort.rounds as f64);
    let load = Load { threads, held_tsc, time };
    for attempt in 1.. {
        let mut samples = vec![Vec::new(); PoolKind::ALL.len()];
        for _ in 0..effort.rounds {
            for (how, list) in PoolKind::ALL.into_iter().zip(&mut samples) {
                list.push(how.make(cpus(), threads, maxactive, &load)?);
            }
        }
        let times: Vec<Vec<f64>> =
            samples.iter().map(|list| list.iter().map(|s| ns(s, threads)).collect()).collect();
        let (low, control, high) = quartiles(&times[1]);
        let varied = (high - low) / control;
        let unsteady = threads > 1 && varied > STEADY;
        if unsteady && attempt < RETRIES {
            continue;
        }
        let bare = quartiles(&times[0]).1;
        let row = |((how, list), times): ((PoolKind, &Vec<Sample>), &Vec<f64>)| {
            if unsteady {
                let skipped = format!("the control varied by {:.0} %", varied * 100.0);
                return PoolRow::new(case, how, threads, maxactive, Figures::Skipped { skipped });
            }
            let (low_ns, ns, high_ns) = quartiles(times);
            let mops = threads as f64 * 1e3 / ns;
            let figures =
                Figures::Hit { ns, added_ns: ns - bare, mops, low_ns, high_ns, rounds: times.len() };
            let sum = |of: fn(&Sample) -> u64| list.iter().map(of).sum();
            let bytes = list.first().map_or(0, |sample| sample.bytes);
            PoolRow::new(case, how, threads, maxactive, figures).counted(
                sum(|s| s.hits),
                sum(|s| s.misses),
                bytes,
                control / ns,
            )
        };
        return Ok(PoolKind::ALL.into_iter().zip(&samples).zip(&times).map(row).collect());
    }
    Ok(Vec::new())
}

/// Nanoseconds per pair of take and put, and per thread.
fn ns(sample: &Sample, threads: usize) -> f64 {
    sample.seconds * 1e9 * threads as f64 / sample.hits as f64
}

fn endurance(operations: u64, maxactive: u32, effort: Effort, sink: &mut Sink) -> Result<()> {
    let threads = effort.threads.unwrap_or(4 * cpus() as usize);
    let how = PoolKind::Ours;
    let begun = Instant::now();
    let storm = Storm { threads, operations, lives: 100, signals: true, handed: true };
    let tally = how.make(cpus(), threads, maxactive, &storm)?;
    sink.take(&EnduranceRow::new(how, threads, maxactive, tally, begun.elapsed().as_secs_f64()))?;
    anyhow::ensure!(
        tally.lost == 0 && tally.doubled == 0,
        "{} lost, {} held twice",
        tally.lost,
        tally.doubled
    );
    Ok(())
}
