//! Many threads that take, hold and put objects in disorder. Signals interrupt them, and the handlers take
//! and put. They migrate between CPUs, pass objects to each other, end, and are replaced. A ledger notes
//! which objects are held.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::cpu_area::CpuArea;
use super::instances::Instances;
use super::ticks::Ticks;
use trapline_bench::functions::pin_to;

/// The load on a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Storm {
    pub(crate) threads: usize,
    /// Takes and puts, of all threads together.
    pub(crate) operations: u64,
    /// Number of threads that follow one another in each place; each ends after its share of the operations.
    pub(crate) lives: u64,
    pub(crate) signals: bool,
    /// Threads pass objects to each other.
    pub(crate) handed: bool,
}

/// Results of a storm.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Tally {
    pub(crate) operations: u64,
    pub(crate) misses: u64,
    /// Signals handled.
    pub(crate) signals: u64,
    /// Objects that were taken while they were held, or put while they were not.
    pub(crate) doubled: u64,
    /// Objects that were missing at the end.
    pub(crate) lost: u64,
}

/// Which objects are held.
struct Ledger {
    held: Vec<AtomicU32>,
    doubled: AtomicU64,
    misses: AtomicU64,
    signals: AtomicU64,
    operations: AtomicU64,
}

impl Ledger {
    fn mark(&self, object: u32, from: u32, to: u32) {
        let entry = self.held.get(object as usize);
        if entry.is_none_or(|entry| entry.swap(to, Relaxed) != from) {
            self.doubled.fetch_add(1, Relaxed);
        }
    }
    fn take<P: Instances>(&self, pool: &P, cpu_area: &CpuArea) -> Option<u32> {
        let object = pool.get(cpu_area)?;
        self.mark(object, 0, 1);
        Some(object)
    }
    fn put<P: Instances>(&self, pool: &P, cpu_area: &CpuArea, object: u32) {
        self.mark(object, 1, 0);
        pool.put(cpu_area, object);
    }
}

/// Most objects that a thread holds at a time.
const HANDS: usize = 5;

/// One thread, from start to end.
fn live<P: Instances>(
    storm: &Storm,
    pool: &P,
    ledger: &Ledger,
    shared: &Mutex<Vec<u32>>,
    (thread, operations): (usize, u64),
) -> Result<()> {
    let cpu_area = CpuArea::new(thread).context("no rseq area")?;
    let in_handler = CpuArea::new(thread).context("no rseq area")?;
    let operation = || {
        ledger.signals.fetch_add(1, Relaxed);
        let held = [(); 2].map(|()| ledger.take(pool, &in_handler));
        held.into_iter().rev().flatten().for_each(|object| ledger.put(pool, &in_handler, object));
    };
    let period = Duration::from_micros(97 + 31 * thread as u64);
    let _ticks = storm.signals.then(|| Ticks::start(period, &operation)).transpose()?;
    let (mut held, mut misses): (Vec<u32>, u64) = (Vec::with_capacity(HANDS), 0);
    for n in 0..operations {
        let random = cpu_area.random() as usize;
        if n % 4096 == 0 {
            pin_to((random >> 8) % online());
        }
        if storm.handed
            && n % 64 == 0
            && !held.is_empty()
            && let Ok(mut shared) = shared.try_lock()
        {
            held.append(&mut shared);
            shared.extend(held.pop());
        }
        if held.is_empty() || (random & 1 == 0 && held.len() < HANDS) {
            match ledger.take(pool, &cpu_area) {
                Some(object) => held.push(object),
                None => misses += 1,
            }
        } else {
            let object = held.swap_remove((random >> 1) % held.len());
            ledger.put(pool, &cpu_area, object);
        }
    }
    held.into_iter().for_each(|object| ledger.put(pool, &cpu_area, object));
    ledger.misses.fetch_add(misses, Relaxed);
    ledger.operations.fetch_add(operations, Relaxed);
    Ok(())
}

impl Storm {
    /// Runs over a pool that has no other user.
    pub(crate) fn over<P: Instances>(&self, pool: &P) -> Result<Tally> {
        let ledger = Ledger {
            held: (0..pool.objects()).map(|_| AtomicU32::new(0)).collect(),
            doubled: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            signals: AtomicU64::new(0),
            operations: AtomicU64::new(0),
        };
        let shared = Mutex::new(Vec::new());
        let each = self.operations / self.threads as u64 / self.lives;
        std::thread::scope(|scope| -> Result<()> {
            let (ledger, shared) = (&ledger, &shared);
            // One place for threads that follow one another.
            let worker = |thread| {
                scope.spawn(move || -> Result<()> {
                    for _ in 0..self.lives {
                        std::thread::scope(|lives| {
                            let life = lives.spawn(|| live(self, pool, ledger, shared, (thread, each)));
                            life.join().unwrap_or_else(|_| anyhow::bail!("a thread of the storm panicked"))
                        })?;
                    }
                    Ok(())
                })
            };
            let workers: Vec<_> = (0..self.threads).map(worker).collect();
            let all: Result<Vec<()>> = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|_| anyhow::bail!("panicked")))
                .collect();
            all.map(drop)
        })?;
        let left = std::mem::take(&mut *shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        let cpu_area = CpuArea::new(0).context("no rseq area")?;
        left.into_iter().for_each(|object| ledger.put(pool, &cpu_area, object));
        let there = std::thread::scope(|scope| scope.spawn(|| drain(pool, self.threads)).join().ok());
        let there = there.flatten().context("the count failed")?;
        Ok(Tally {
            operations: ledger.operations.load(SeqCst),
            misses: ledger.misses.load(SeqCst),
            signals: ledger.signals.load(SeqCst),
            doubled: ledger.doubled.load(SeqCst),
            lost: u64::from(pool.objects()) - there.len() as u64,
        })
    }
}

/// Takes all objects that are there, on every CPU and as every thread of the storm.
fn drain<P: Instances>(pool: &P, threads: usize) -> Option<BTreeSet<u32>> {
    let mut there = BTreeSet::new();
    for (cpu, thread) in (0..online()).flat_map(|cpu| (0..threads).map(move |thread| (cpu, thread))) {
        pin_to(cpu);
        let cpu_area = CpuArea::new(thread)?;
        while let Some(object) = pool.get(&cpu_area) {
            // The same object twice: the loop would never end.
            there.insert(object).then_some(())?;
        }
    }
    Some(there)
}

/// Number of CPUs that are online, even if this thread may not run on all.
fn online() -> usize {
    // SAFETY: the call takes no pointer.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN).max(1) as usize }
}
