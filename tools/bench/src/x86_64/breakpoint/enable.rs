//! `enable`: switches one inherited breakpoint off and on while threads sleep and run. This is the kernel's
//! cost alone. The debug register stays reserved meanwhile, so no accounting takes part.

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::how::{Load, cpus};
use super::row::{BreakpointFigures, BreakpointRow};
use super::thread;
use crate::x86_64::hits::Effort;

pub(super) fn run(
    load: Load,
    effort: Effort,
    emit: &mut impl FnMut(&BreakpointRow) -> Result<()>,
) -> Result<()> {
    let seconds: Result<Vec<f64>> = (0..effort.rounds).map(|_| once(load)).collect();
    let seconds = seconds.map_err(|error| format!("{error:#}"));
    let figures = BreakpointFigures::new(seconds.as_deref(), 2 * load.repeat, 1);
    emit(&BreakpointRow::enable(cpus(), load, figures))
}

fn once(load: Load) -> Result<f64> {
    let mut events = thread::watch(1)?;
    let event = events.first_mut().context("one breakpoint")?;
    let (asleep, done) = (RwLock::new(()), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let night = asleep.write();
        for _ in 0..load.parallelism {
            scope.spawn(|| drop(asleep.read()));
        }
        for _ in 0..load.active {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let begun = Instant::now();
        let switched = (0..load.repeat).try_for_each(|_| {
            event.set_enabled(false)?;
            event.set_enabled(true)
        });
        let took = begun.elapsed().as_secs_f64();
        done.store(true, Relaxed);
        drop(night);
        switched?;
        Ok(took)
    })
}
