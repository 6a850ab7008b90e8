//! `thread`: creates and joins threads, each with its breakpoints.
//!
//! As in `perf bench breakpoint thread`, P threads share a number of repetitions. In each repetition, one of
//! them creates T threads that wait, wakes them, and joins them. The kernel creates each new thread's events
//! together with the thread. Our accounting is done by the new thread itself, under a number of its own.

use std::sync::RwLock;
use std::sync::atomic::{AtomicIsize, AtomicU8, Ordering::Relaxed};
use std::thread::Builder;
use std::time::Instant;

use anyhow::{Context as _, Result};
use trapline_tracee::perf::breakpoint::{Access, Breakpoint, Scope, Spec};
use trapline_watch::constraints::{Accounting, BreakpointKind, Target, TaskId};

use super::how::{How, Load, cpus, machine};
use super::row::{BreakpointFigures, BreakpointRow};
use crate::x86_64::hits::Effort;

/// Stack bytes of a thread. Threads that only wait need little.
const STACK: usize = 64 << 10;
/// The watched bytes. No thread accesses them.
static WATCHED: [AtomicU8; 16] = [const { AtomicU8::new(0) }; 16];

pub(super) fn run(
    load: Load,
    effort: Effort,
    emit: &mut impl FnMut(&BreakpointRow) -> Result<()>,
) -> Result<()> {
    let over_events = How::ALL.map(|how| (how, true));
    let alone = How::ALL.into_iter().filter(|&how| how != How::None).map(|how| (how, false));
    let rows: Vec<(How, bool)> = over_events.into_iter().chain(alone).collect();
    let mut samples: Vec<Result<Vec<f64>, String>> = rows.iter().map(|_| Ok(Vec::new())).collect();
    for _ in 0..effort.rounds {
        for (&(how, events), sample) in rows.iter().zip(&mut samples) {
            let Ok(seconds) = sample else { continue };
            match once(how, events, load) {
                Ok(took) => seconds.push(took),
                Err(error) => *sample = Err(format!("{error:#}")),
            }
        }
    }
    for (&(how, events), sample) in rows.iter().zip(&samples) {
        let load = if how == How::None { Load { breakpoints: 0, ..load } } else { load };
        let figures = BreakpointFigures::new(sample.as_deref(), load.repeat * load.threads, load.parallelism);
        emit(&BreakpointRow::thread(how, events, cpus(), load, figures))?;
    }
    Ok(())
}

/// Breakpoints of this process that every thread created later inherits.
pub(super) fn watch(breakpoints: usize) -> Result<Vec<Breakpoint>> {
    let spec = |at: usize| Spec {
        addr: address(&WATCHED[at % WATCHED.len()]),
        len: 1,
        access: Access::ReadWrite,
        scope: Scope::Thread { tid: None, cpu: None },
        inherit: true,
    };
    (0..breakpoints).map(|at| Ok(Breakpoint::open(spec(at), true)?)).collect()
}

fn address(byte: &'static AtomicU8) -> trapline_record::RemoteAddr {
    trapline_record::RemoteAddr(std::ptr::from_ref(byte).addr() as u64)
}

/// Seconds of one whole benchmark.
fn once(how: How, events: bool, load: Load) -> Result<f64> {
    let books = how.books(machine(cpus())?);
    let breakpoints = if how == How::None { 0 } else { load.breakpoints };
    let _events = watch(if events { breakpoints } else { 0 })?;
    let repeat = AtomicIsize::new(load.repeat.cast_signed());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let (books, repeat) = (&*books, &repeat);
        let workers: Vec<_> = (0..load.parallelism)
            .map(|worker| {
                let work = move || -> Result<()> {
                    while repeat.fetch_sub(1, Relaxed) > 0 {
                        crowd(books, worker, breakpoints, load.threads)?;
                    }
                    Ok(())
                };
                Builder::new().stack_size(STACK).spawn_scoped(scope, work)
            })
            .collect();
        workers.into_iter().try_for_each(|worker| ended(worker.context("a thread")?.join()))
    })?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Creates threads, wakes them, joins them.
fn crowd(books: &dyn Accounting, worker: usize, breakpoints: usize, threads: usize) -> Result<()> {
    let gate = RwLock::new(());
    std::thread::scope(|scope| {
        let held = gate.write();
        let crowd: Vec<_> = (0..threads)
            .map(|at| {
                let number = 1 + (worker * threads + at) as u32 % (TaskId::LIMIT - 1);
                let gate = &gate;
                let live = move || member(books, number, breakpoints, gate);
                Builder::new().stack_size(STACK).spawn_scoped(scope, live)
            })
            .collect();
        drop(held);
        crowd.into_iter().try_for_each(|thread| ended(thread.context("a thread")?.join()))
    })
}

/// Result of a joined thread.
pub(super) fn ended<T>(result: std::thread::Result<Result<T>>) -> Result<T> {
    result.map_err(|_| anyhow::anyhow!("a thread failed"))?
}

/// One thread: reserves its breakpoints, waits, releases them.
fn member(books: &dyn Accounting, number: u32, breakpoints: usize, gate: &RwLock<()>) -> Result<()> {
    let task = TaskId::new(number).context("a task's number")?;
    let request = Target::Task(task).one(BreakpointKind::Data);
    let held = (0..breakpoints).map(|_| books.reserve(request)).collect::<Result<Vec<_>, _>>();
    drop(gate.read());
    held?.into_iter().for_each(|reservation| books.release(reservation));
    Ok(())
}
