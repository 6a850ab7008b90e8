//! `accounting`: reserve and release, without a system call.
//!
//! It answers two questions. First, how does the cost depend on the number of threads and of CPUs? Each
//! thread has tasks of its own. It reserves all breakpoints of one task after the other, and releases them.
//! Second, what does it cost beside many tasks? All of them hold all their breakpoints. One breakpoint is
//! released and reserved again, each time of another task that lies far from the last.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use trapline_watch::constraints::{Accounting, BreakpointKind, Reservation, Target, TaskId};

use super::how::{How, Load, cpus, machine};
use super::row::{BreakpointFigures, BreakpointRow};
use super::thread::ended;
use crate::x86_64::hits::Effort;

/// Tasks of each thread, for the first question.
const OWN: usize = 16;
/// Numbers of tasks, for the second question.
const TASKS: [usize; 3] = [100, 1000, 10_000];

/// One row to measure.
#[derive(Clone, Copy, Debug)]
struct Plan {
    how: How,
    threads: usize,
    cpus: u32,
    tasks: usize,
    /// All tasks hold all their breakpoints while one is measured.
    full: bool,
}

pub(super) fn run(
    breakpoints: usize,
    effort: Effort,
    emit: &mut impl FnMut(&BreakpointRow) -> Result<()>,
) -> Result<()> {
    let here = cpus();
    let threads = (1..=here as usize).filter(|&n| n.is_power_of_two() || n == here as usize);
    let threads: Vec<usize> = threads.filter(|&n| effort.threads.is_none_or(|only| only == n)).collect();
    let mut shapes: Vec<(usize, u32, usize, bool)> = Vec::new();
    for cpus in [1, here, 256] {
        // With only one CPU, only one thread runs.
        let runs = threads.iter().filter(|&&n| cpus > 1 || n == 1);
        shapes.extend(runs.map(|&threads| (threads, cpus, OWN * threads, false)));
    }
    shapes.extend(TASKS.iter().filter(|_| threads.contains(&1)).map(|&tasks| (1, here, tasks, true)));
    for (threads, cpus, tasks, full) in shapes {
        let plans = How::ALONE.map(|how| Plan { how, threads, cpus, tasks, full });
        for row in rows(&plans, breakpoints, effort)? {
            emit(&row)?;
        }
    }
    Ok(())
}

fn rows(plans: &[Plan], breakpoints: usize, effort: Effort) -> Result<Vec<BreakpointRow>> {
    let time = Duration::from_secs_f64(effort.seconds / effort.rounds as f64);
    // Seconds of one operation, all threads together.
    let mut samples: Vec<Vec<f64>> = plans.iter().map(|_| Vec::new()).collect();
    for _ in 0..effort.rounds {
        for (&plan, sample) in plans.iter().zip(&mut samples) {
            sample.push(once(plan, breakpoints, time)?);
        }
    }
    let row = |(plan, seconds): (&Plan, Vec<f64>)| {
        let load = Load { breakpoints, parallelism: 1, threads: plan.threads, active: 0, repeat: 0 };
        let figures = BreakpointFigures::new(Ok(&seconds), 1, plan.threads);
        BreakpointRow::accounting(plan.how, plan.cpus, plan.tasks, load, figures)
    };
    Ok(plans.iter().zip(samples).map(row).collect())
}

fn task(number: usize) -> Result<Target> {
    let number = u32::try_from(number + 1).ok().and_then(TaskId::new);
    Ok(Target::Task(number.context("fewer tasks than that exist")?))
}

/// Seconds to reserve and release one breakpoint, while all threads do so.
fn once(plan: Plan, breakpoints: usize, time: Duration) -> Result<f64> {
    let machine = machine(plan.cpus)?;
    let books: Vec<_> = (0..plan.threads).map(|_| plan.how.books(machine)).collect();
    let (start, stop) = (Barrier::new(plan.threads + 1), AtomicBool::new(false));
    let each = plan.tasks / plan.threads;
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.threads)
            .map(|worker| {
                let of = if plan.how == How::Control { worker } else { 0 };
                let (books, start, stop) = (&*books[of], &start, &stop);
                scope.spawn(move || {
                    let tasks = (worker * each..(worker + 1) * each).map(task).collect::<Result<Vec<_>>>()?;
                    let none = plan.how == How::None;
                    let ready = || {
                        start.wait();
                    };
                    let go_on = || !stop.load(Relaxed);
                    match plan.full {
                        true => one_of_many(books, &tasks, breakpoints, none, ready, go_on),
                        false => all_of_few(books, &tasks, breakpoints, none, ready, go_on),
                    }
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Relaxed);
        let ops: Result<Vec<usize>> = workers.into_iter().map(|worker| ended(worker.join())).collect();
        Ok(begun.elapsed().as_secs_f64() / ops?.iter().sum::<usize>().max(1) as f64)
    })
}

/// Reserves all breakpoints of each task, and releases them.
fn all_of_few(
    books: &dyn Accounting,
    tasks: &[Target],
    breakpoints: usize,
    none: bool,
    ready: impl FnOnce(),
    go_on: impl Fn() -> bool,
) -> Result<usize> {
    let mut held: Vec<Reservation> = Vec::with_capacity(breakpoints);
    let mut ops = 0;
    ready();
    while go_on() {
        for target in tasks {
            let request = std::hint::black_box(target.one(BreakpointKind::Data));
            ops += breakpoints;
            if none {
                continue;
            }
            for _ in 0..breakpoints {
                held.push(books.reserve(request)?);
            }
            held.drain(..).for_each(|reservation| books.release(reservation));
        }
    }
    Ok(ops)
}

/// Releases and reserves one breakpoint of a task after the other. The flag that ends the round is read every
/// 16 tasks.
fn one_of_many(
    books: &dyn Accounting,
    tasks: &[Target],
    breakpoints: usize,
    none: bool,
    ready: impl FnOnce(),
    go_on: impl Fn() -> bool,
) -> Result<usize> {
    const STRIDE: usize = 7919;
    let mut held = Vec::with_capacity(tasks.len());
    for target in tasks {
        let all: Result<Vec<_>, _> = (0..if none { 0 } else { breakpoints })
            .map(|_| books.reserve(target.one(BreakpointKind::Data)))
            .collect();
        held.push(all?);
    }
    let (mut ops, mut at) = (0, 0);
    ready();
    while go_on() {
        for _ in 0..16 {
            at = (at + STRIDE) % tasks.len();
            let request = std::hint::black_box(tasks[at].one(BreakpointKind::Data));
            ops += 1;
            if none {
                continue;
            }
            held[at].pop().into_iter().for_each(|reservation| books.release(reservation));
            held[at].push(books.reserve(request)?);
        }
    }
    Ok(ops)
}
