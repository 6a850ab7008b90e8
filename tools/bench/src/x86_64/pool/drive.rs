//! Threads that take and put as fast as they can, or hold each object for a microsecond as a return probe of
//! a short function does.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::cpu_area::CpuArea;
use super::instances::{Instances, Memory};
use trapline_bench::functions::pin_to;

/// How the pool is used in one round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Load {
    pub(crate) threads: usize,
    /// Timestamp ticks between take and put; 0 for none.
    pub(crate) held_tsc: u64,
    pub(crate) time: Duration,
}

/// Results of a round, of all threads together.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Sample {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    /// From the start until the last thread has ended.
    pub(crate) seconds: f64,
    pub(crate) bytes: usize,
}

/// Timestamp ticks in a microsecond.
pub(crate) fn tsc_per_us() -> u64 {
    let (begun, first) = (Instant::now(), now());
    while begun.elapsed() < Duration::from_millis(20) {}
    ((now() - first) as f64 / begun.elapsed().as_secs_f64() / 1e6) as u64
}

#[inline]
fn now() -> u64 {
    // SAFETY: every x86-64 CPU that Linux runs on has a time stamp counter.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Pairs between two reads of the clock.
const BATCH: u32 = 64;

/// Runs one round.
pub(crate) fn drive<P: Instances>(pool: &P, load: Load) -> Result<Sample> {
    let (stop, start) = (AtomicBool::new(false), Barrier::new(load.threads + 1));
    let each = std::thread::scope(|scope| {
        let one = |thread: usize| {
            let (stop, start) = (&stop, &start);
            scope.spawn(move || {
                // With more threads than CPUs, the scheduler places them.
                if load.threads <= cpus() as usize {
                    pin_to(thread);
                }
                let cpu_area = CpuArea::new(thread);
                start.wait();
                cpu_area.map(|cpu_area| turn(pool, &cpu_area, load, stop))
            })
        };
        let threads: Vec<_> = (0..load.threads).map(one).collect();
        let begun = Instant::now();
        start.wait();
        std::thread::sleep(load.time);
        stop.store(true, Relaxed);
        let each = threads.into_iter().map(|thread| thread.join().ok().flatten()).collect::<Option<Vec<_>>>();
        each.map(|each| (begun, each))
    });
    let (begun, each) = each.context("no rseq area")?;
    let sum = |of: fn(&Sample) -> u64| each.iter().map(|(sample, _)| of(sample)).sum();
    // From the common start to the end of the last thread: if there are more threads than CPUs, they take
    // turns.
    let ended = each.iter().map(|(_, ended)| *ended).max().unwrap_or(begun);
    let seconds = (ended - begun).as_secs_f64();
    Ok(Sample { hits: sum(|s| s.hits), misses: sum(|s| s.misses), seconds, bytes: pool.bytes() })
}

fn turn<P: Instances>(pool: &P, cpu_area: &CpuArea, load: Load, stop: &AtomicBool) -> (Sample, Instant) {
    let mut sample = Sample::default();
    while !stop.load(Relaxed) {
        for _ in 0..BATCH {
            match pool.get(cpu_area) {
                Some(object) => {
                    let object = black_box(object);
                    if load.held_tsc > 0 {
                        let taken = now();
                        while now() - taken < load.held_tsc {
                            std::hint::spin_loop();
                        }
                    }
                    pool.put(cpu_area, object);
                    sample.hits += 1;
                }
                None => sample.misses += 1,
            }
        }
    }
    (sample, Instant::now())
}

/// Number of CPUs that can exist; their numbers are below it.
pub(crate) fn cpus() -> u32 {
    // SAFETY: the call takes no pointer.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) as u32 }
}

/// No pool: the bare loop.
#[derive(Debug)]
pub(crate) struct Bare;

/// No pool: a counter for each thread.
#[derive(Debug)]
pub(crate) struct Control(Box<[Line]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line(AtomicU64);

impl Control {
    pub(crate) fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Line::default()).collect())
    }
}

impl Instances for Bare {
    #[inline]
    fn get(&self, _: &CpuArea) -> Option<u32> {
        Some(0)
    }
    #[inline]
    fn put(&self, _: &CpuArea, _: u32) {}
    fn objects(&self) -> u32 {
        0
    }
    fn memory(&self) -> Vec<Memory> {
        Vec::new()
    }
}

impl Instances for Control {
    #[inline]
    fn get(&self, cpu_area: &CpuArea) -> Option<u32> {
        let count = &self.0[cpu_area.thread].0;
        count.store(count.load(Relaxed) + 1, Relaxed);
        Some(0)
    }
    #[inline]
    fn put(&self, cpu_area: &CpuArea, _: u32) {
        let count = &self.0[cpu_area.thread].0;
        count.store(count.load(Relaxed) + 1, Relaxed);
    }
    fn objects(&self) -> u32 {
        0
    }
    fn memory(&self) -> Vec<Memory> {
        Vec::new()
    }
}
