//! The ten cases of the kernel's own test of its pool (lib/test_objpool.c), run on ours for a second each.
//! One worker is bound to each CPU; a timer's signal takes the place of the kernel's timer interrupt.
//!
//! A worker takes `bulk` objects, sleeps (each round, or every 32768th without a delay), and puts them back.
//! `async`: after the stop, the pool is closed as soon as no get can be running, while objects are still
//! held. The put of the last object reports that it was the last, exactly once.
//! Beyond the kernel's test, this is asserted here, and so is that all memory came back.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use trapline_runtime::pool::{Held, Leaving, OwnedPool, Pool, PoolSize, Returned, restart_sequences};

use super::cpu_area::CpuArea;
use super::row::{CaseRow, Count, PerCpu};
use super::ticks::Ticks;
use trapline_bench::functions::pin_to;

/// The numbers of a case.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    /// The pool lies on a region of its own, with larger objects.
    region: bool,
    closed_while_held: bool,
    bulk: usize,
    bulk_in_signal: usize,
    delay: Duration,
    period: Option<Duration>,
}

const MS: Duration = Duration::from_millis(1);
const TICK: Option<Duration> = Some(Duration::from_millis(4));

const fn case(name: &'static str, region: bool, closed_while_held: bool, bulk: (usize, usize)) -> Case {
    let period = if bulk.1 > 0 { TICK } else { None };
    Case {
        name,
        region,
        closed_while_held,
        bulk: bulk.0,
        bulk_in_signal: bulk.1,
        delay: Duration::ZERO,
        period,
    }
}

const CASES: [Case; 10] = [
    case("sync: percpu objpool", false, false, (1, 0)),
    case("sync: percpu objpool from vmalloc", true, false, (1, 0)),
    case("sync & hrtimer: percpu objpool", false, false, (1, 1)),
    case("sync & hrtimer: percpu objpool from vmalloc", true, false, (1, 1)),
    case("sync overrun: percpu objpool", false, false, (16, 0)),
    case("sync overrun: percpu objpool from vmalloc", true, false, (16, 0)),
    Case { delay: Duration::from_millis(100), ..case("async: percpu objpool", false, true, (1, 0)) },
    Case {
        delay: Duration::from_millis(100),
        ..case("async: percpu objpool from vmalloc", true, true, (1, 0))
    },
    case("async & hrtimer: percpu objpool", false, true, (4, 4)),
    case("async & hrtimer: percpu objpool from vmalloc", true, true, (4, 4)),
];

/// Where a pool lies.
enum Store {
    Owned(OwnedPool),
    Region(NonNull<u8>, Pool),
}

/// What the workers share.
struct Run {
    pool: Pool,
    stop: AtomicBool,
    start: Barrier,
    released: AtomicU32,
    /// For each worker and its signal handler: whether it is taking objects.
    taking: Vec<[AtomicBool; 2]>,
}

impl Run {
    /// Takes up to `bulk` objects. Takes none once `stop` is seen.
    fn take(
        &self,
        (worker, level): (usize, usize),
        cpu_area: &CpuArea,
        held: &mut Vec<Held>,
        bulk: usize,
    ) -> Option<Count> {
        let taking = &self.taking[worker][level];
        taking.store(true, SeqCst);
        let go = !self.stop.load(SeqCst);
        let mut count = Count::default();
        for _ in 0..if go { bulk } else { 0 } {
            match self.pool.get(cpu_area.at()) {
                Some(object) => {
                    held.push(object);
                    count.hits += 1;
                }
                None => count.misses += 1,
            }
        }
        taking.store(false, SeqCst);
        go.then_some(count)
    }
    fn put(&self, cpu_area: &CpuArea, held: &mut Vec<Held>) {
        while let Some(object) = held.pop() {
            if self.pool.put(cpu_area.at(), object) == Returned::Last {
                self.released.fetch_add(1, SeqCst);
            }
        }
    }
    fn work(&self, case: Case, worker: usize) -> Result<PerCpu> {
        pin_to(worker);
        let cpu_area = CpuArea::new(worker).context("no rseq area")?;
        let in_handler = CpuArea::new(worker).context("no rseq area")?;
        let irq = Cell::new(Count::default());
        let spare = Cell::new(Vec::with_capacity(case.bulk_in_signal));
        let operation = || {
            let mut held = spare.take();
            if let Some(count) = self.take((worker, 1), &in_handler, &mut held, case.bulk_in_signal) {
                let sum = irq.get();
                irq.set(Count { hits: sum.hits + count.hits, misses: sum.misses + count.misses });
            }
            self.put(&in_handler, &mut held);
            spare.set(held);
        };
        let mut held = Vec::with_capacity(case.bulk);
        self.start.wait();
        let begun = Instant::now();
        let ticks = case.period.map(|period| Ticks::start(period, &operation)).transpose()?;
        let (mut thread, mut round) = (Count::default(), 0_u64);
        while let Some(count) = self.take((worker, 0), &cpu_area, &mut held, case.bulk) {
            thread.hits += count.hits;
            thread.misses += count.misses;
            round += 1;
            if !case.delay.is_zero() || round.is_multiple_of(32768) {
                std::thread::sleep(case.delay);
            }
            self.put(&cpu_area, &mut held);
        }
        drop(ticks);
        let usecs = begun.elapsed().as_micros() as u64;
        Ok(PerCpu { cpu: worker, usecs, thread, irq: irq.get() })
    }
}

fn store(case: Case, shape: PoolSize) -> Result<(Store, Pool)> {
    if !case.region {
        let pool = OwnedPool::new(shape)?;
        let copy = *pool;
        return Ok((Store::Owned(pool), copy));
    }
    // SAFETY: a fresh mapping of the shape's size; the pool on it ends before it is unmapped.
    unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), shape.bytes(), prot, flags, -1, 0);
        ensure!(at != libc::MAP_FAILED, "a mapping of {} bytes", shape.bytes());
        let region = NonNull::new(at.cast()).context("mapped at 0")?;
        let pool = Pool::format(region, shape.bytes(), shape)?;
        Ok((Store::Region(region, pool), pool))
    }
}

/// Closes the pool. Also returns how many objects were held right after that.
fn close(store: Store, run: &Run) -> Result<(Closed, u32)> {
    let (closed, reported) = match store {
        Store::Owned(pool) => {
            // SAFETY: no get is running: every worker was seen not to take since `stop` was set.
            let leaving = unsafe { pool.close(restart_sequences) }.map_err(|(_, error)| error)?;
            let reported = leaving.closed();
            (Closed::Owned(leaving), reported)
        }
        Store::Region(region, pool) => {
            let reported = pool.close(restart_sequences)?;
            (Closed::Region(region, pool.shape().bytes()), reported)
        }
    };
    run.released.fetch_add(u32::from(reported == Returned::Last), SeqCst);
    // The memory is ours to free, and is still mapped.
    Ok((closed, run.pool.not_dropped()))
}

enum Closed {
    Owned(Leaving),
    Region(NonNull<u8>, usize),
}

/// Runs one case. It is an error unless the release is reported exactly once and all memory comes back.
fn run_case(case: Case, cpus: u32, time: Duration) -> Result<CaseRow> {
    // The kernel's sizes: owner, data, count and 32 words, or half a kilobyte.
    let shape = PoolSize::new(cpus, Some(8 * cpus), if case.region { 512 } else { 280 })?;
    let (store, pool) = store(case, shape)?;
    let workers = cpus as usize;
    let run = Run {
        pool,
        stop: AtomicBool::new(false),
        start: Barrier::new(workers + 1),
        released: AtomicU32::new(0),
        taking: (0..workers).map(|_| Default::default()).collect(),
    };
    let (begun, mut ended) = (Instant::now(), None);
    let (each, held_at_close) = std::thread::scope(|scope| -> Result<_> {
        let run = &run;
        let workers: Vec<_> =
            (0..workers).map(|worker| scope.spawn(move || run.work(case, worker))).collect();
        run.start.wait();
        std::thread::sleep(time);
        run.stop.store(true, SeqCst);
        let join = |workers: Vec<std::thread::ScopedJoinHandle<'_, Result<PerCpu>>>| {
            let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
                worker.join().unwrap_or_else(|_| anyhow::bail!("a worker panicked"))
            };
            workers.into_iter().map(join).collect::<Result<Vec<_>>>()
        };
        if !case.closed_while_held {
            let each = join(workers)?;
            let (closed, held) = close(store, run)?;
            ended = Some(closed);
            return Ok((each, held));
        }
        // Wait until each worker was once seen not to take. One that begins later sees the stop.
        run.taking.iter().flatten().for_each(|taking| {
            while taking.load(SeqCst) {
                std::thread::yield_now();
            }
        });
        let (closed, held) = close(store, run)?;
        ended = Some(closed);
        Ok((join(workers)?, held))
    })?;
    let usecs = begun.elapsed().as_micros() as u64;
    let released = run.released.load(SeqCst);
    ensure!(released == 1, "{}: {released} were reported as the last", case.name);
    let freed = free(ended.context("closed")?, shape.bytes())
        .with_context(|| format!("{}: not all came back", case.name))?;
    Ok(CaseRow {
        kind: "bench",
        schema: 1,
        bench: "pool",
        case: case.name,
        how: "ours",
        cpus: each,
        usecs,
        allocated: shape.bytes(),
        freed,
        released,
        held_at_close,
    })
}

fn free(closed: Closed, bytes: usize) -> Result<usize> {
    match closed {
        Closed::Owned(leaving) => {
            let held = leaving.held();
            leaving.try_free().map_err(|_| anyhow::anyhow!("{held} are held"))?;
            Ok(bytes)
        }
        Closed::Region(at, bytes) => {
            // SAFETY: our own mapping, on which no object is held any more.
            let unmapped = unsafe { libc::munmap(at.as_ptr().cast(), bytes) } == 0;
            ensure!(unmapped, "not unmapped");
            Ok(bytes)
        }
    }
}

/// Runs all ten cases, then emits a summary line for each.
pub(super) fn run(
    cpus: u32,
    time: Duration,
    mut emit: impl FnMut(&CaseRow) -> Result<()>,
) -> Result<Vec<String>> {
    let time = time.max(MS);
    CASES
        .into_iter()
        .map(|case| {
            let row = run_case(case, cpus, time)?;
            emit(&row)?;
            Ok(row.summary())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Repeats the case until it did what it is for: workers got objects, and some found none where the case
    /// means that.
    fn ran(case: Case, cpus: u32) -> (CaseRow, Count) {
        let since = Instant::now();
        loop {
            let row = run_case(case, cpus, 50 * MS).expect(case.name);
            let all = row.cpus.iter().fold(Count::default(), |sum, one| Count {
                hits: sum.hits + one.thread.hits,
                misses: sum.misses + one.thread.misses,
            });
            if all.hits > 0 && (case.bulk != 16 || all.misses > 0) {
                return (row, all);
            }
            assert!(since.elapsed() < Duration::from_secs(120), "{}: {all:?}", case.name);
        }
    }

    /// The ten cases, shorter than in the bench. `run_case` makes an error of what must hold in every case:
    /// the last put is reported once, and all memory comes back.
    #[test]
    fn the_ten_cases() {
        assert!(trapline_runtime::pool::register_restarts());
        let cpus = super::super::drive::cpus();
        for case in CASES {
            let (row, all) = ran(case, cpus);
            assert_eq!((row.cpus.len(), row.released, row.freed), (cpus as usize, 1, row.allocated));
            assert!(case.bulk > 1 || all.misses == 0, "{}: more were wanted than there are", case.name);
        }
    }
}
