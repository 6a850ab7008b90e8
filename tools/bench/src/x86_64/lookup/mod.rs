//! `lookup`: from an address to its probe, with many regions and probes, by one thread and by several. All
//! threads look for one probe, as in the kernel's own bench. A row (`-walk`) that goes through all probes in
//! random order stands beside it; there the time is mostly spent waiting for memory.
//!
//! `how`: `none` the loop alone, `control` a counter of the thread's own, `ours`, and the baselines:
//! `mm-wide` (the reference design's one sequence for the whole address space, falling back to a lock),
//! `rwlock` and `mutex`. All pass the tests below, and their indexes have the same shape. They differ in how
//! a reader protects itself from writers.

mod churn;
mod laws;
mod locked;
mod mm_wide;
mod operations;
mod ours;
mod pages;
mod plain;
mod write_set;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::x86_64::hits::Effort;
use crate::x86_64::row::{Figures, Row, quartiles, shared};
use trapline_bench::functions::pin;

use operations::{Lookup, Mapped, PAGE};

pub(crate) use churn::{churner, run as run_churn};

/// Number of regions, and of probes in all of them together.
const REGIONS: u64 = 1000;
const PROBES: u64 = 10_000;
/// A region has 16 pages; the next one begins 1 MiB after its start.
const PAGES: u64 = 16;
const STRIDE: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;
/// Largest variation of the control at which rows of several threads are still worth something.
const STEADY: f64 = 0.05;
const RETRIES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    None,
    Control,
    Ours,
    MmWide,
    Rwlock,
    Mutex,
    /// Looks nothing up either; used by `churn` only.
    Pages,
}

impl How {
    const ALL: [Self; 6] = [Self::None, Self::Control, Self::Ours, Self::MmWide, Self::Rwlock, Self::Mutex];
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Control => "control",
            Self::Ours => "ours",
            Self::MmWide => "mm-wide",
            Self::Rwlock => "rwlock",
            Self::Mutex => "mutex",
            Self::Pages => "pages",
        }
    }
    /// Makes a lookup with room for this many regions and probes. `None` for a `how` that looks nothing up.
    fn lookup(self, regions: usize, probes: usize) -> Option<Box<dyn Lookup>> {
        Some(match self {
            Self::None | Self::Control => return None,
            Self::Ours => Box::new(ours::Ours::new(regions)),
            Self::MmWide => Box::new(mm_wide::MmWide::new(regions, probes)),
            Self::Rwlock => Box::new(locked::Rwlock::new(regions, probes)),
            Self::Mutex => Box::new(locked::OneMutex::new(regions, probes)),
            Self::Pages => Box::new(pages::Pages::new()),
        })
    }
}

/// One `how` with its lookup filled, and the addresses to look up.
struct Subject {
    how: How,
    lookup: Option<Box<dyn Lookup>>,
    /// Addresses of all probes.
    walk: Vec<u64>,
    /// One of these addresses, many times.
    hot: Vec<u64>,
}

/// Which addresses to look up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    Hot,
    Walk,
}

impl Subject {
    fn new(how: How) -> Self {
        let lookup = how.lookup(REGIONS as usize + 100, PROBES as usize);
        let mut addrs = Vec::new();
        for region in 0..REGIONS {
            let mapped = self::region(region);
            lookup.iter().for_each(|lookup| lookup.map(mapped));
            for probe in 0..PROBES / REGIONS {
                let by = probe * 0x1830 + 0x10;
                lookup.iter().for_each(|lookup| drop_it(lookup.register(region + 1, PAGE + by)));
                addrs.push(mapped.start + by);
            }
        }
        shuffle(&mut addrs);
        let hot = vec![addrs[0]; 1000];
        Self { how, lookup, walk: addrs, hot }
    }
    /// Looks every address up once, beginning with the `from`-th.
    fn look(&self, addrs: &[u64], from: usize, count: &mut u64) {
        let (later, sooner) = addrs.split_at(from % addrs.len());
        let addrs = sooner.iter().chain(later);
        match &self.lookup {
            None if self.how == How::Control => {
                for addr in addrs {
                    black_box(*addr);
                    *count = black_box(*count + 1);
                }
            }
            None => addrs.for_each(|addr| drop_it(black_box(*addr))),
            Some(lookup) => addrs.for_each(|addr| {
                black_box(lookup.find(black_box(*addr)));
            }),
        }
    }
    /// Checks that all probes are found, and that removed ones are not.
    fn check(&self) -> Result<()> {
        let Some(lookup) = &self.lookup else { return Ok(()) };
        let found = self.walk.iter().filter(|addr| lookup.find(**addr).is_some()).count();
        ensure!(found == self.walk.len(), "{}: found {found} of {}", self.how.name(), self.walk.len());
        let first = region(0);
        let at = first.start + 0x10;
        let finds = |what: &str, expected: bool| {
            ensure!(lookup.find(at).is_some() == expected, "{}: {what}", self.how.name());
            Ok(())
        };
        lookup.unmap(first);
        finds("unmapped", false)?;
        lookup.map(first);
        lookup.unregister(1, PAGE + 0x10);
        finds("unregistered", false)?;
        lookup.register(1, PAGE + 0x10);
        finds("registered again", true)
    }
    /// Nanoseconds of one lookup by one thread.
    fn timed(&self, case: Case, thread: usize, time: Duration) -> f64 {
        let addrs = match case {
            Case::Hot => &self.hot,
            Case::Walk => &self.walk,
        };
        let (from, mut count) = (thread * 997, 0);
        self.look(addrs, from, &mut count);
        let begun = Instant::now();
        let mut walks = 0;
        loop {
            self.look(addrs, from, &mut count);
            walks += 1;
            let took = begun.elapsed();
            if took >= time {
                return took.as_secs_f64() * 1e9 / (walks * addrs.len()) as f64;
            }
        }
    }
}

/// A region of a file of its own, mapped from the file's second page on.
fn region(number: u64) -> Mapped {
    let start = BASE + number * STRIDE;
    Mapped { start, end: start + PAGES * PAGE, file: number + 1, offset: PAGE }
}

fn drop_it(_: u64) {}

/// Shuffles into the same order each time (Fisher and Yates; the numbers are those of Knuth's MMIX
/// generator).
fn shuffle(addrs: &mut [u64]) {
    let mut state = 1_u64;
    for left in (1..addrs.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        addrs.swap(left, (state >> 33) as usize % (left + 1));
    }
}

/// Emits all rows.
pub(crate) fn run(effort: Effort, mut emit: impl FnMut(&Row) -> Result<()>) -> Result<()> {
    let subjects = How::ALL.map(Subject::new);
    subjects.iter().try_for_each(Subject::check)?;
    let threads: Vec<usize> =
        [1, 2].into_iter().filter(|n| effort.threads.is_none_or(|only| only == *n)).collect();
    for case in [Case::Hot, Case::Walk] {
        let mut samples = sample(&subjects, case, &threads, effort);
        for _ in 1..RETRIES {
            if threads.iter().any(|&threads| threads > 1 && unsteady(&samples, threads).is_some()) {
                samples = sample(&subjects, case, &threads, effort);
            }
        }
        for &threads in &threads {
            rows(&subjects, case, threads, &samples).iter().try_for_each(&mut emit)?;
        }
    }
    Ok(())
}

/// Samples by subject and number of threads.
type Samples = BTreeMap<(usize, usize), Vec<f64>>;

/// One attempt: every round measures each subject with each number of threads.
fn sample(subjects: &[Subject], case: Case, threads: &[usize], effort: Effort) -> Samples {
    let time = Duration::from_secs_f64(effort.seconds / effort.rounds as f64);
    let mut samples = Samples::new();
    for _ in 0..effort.rounds {
        for (index, subject) in subjects.iter().enumerate() {
            for &threads in threads {
                let ns = together(subject, case, threads, time);
                samples.entry((index, threads)).or_default().push(ns);
            }
        }
    }
    samples
}

/// How much the control varied, if that is too much.
fn unsteady(samples: &Samples, threads: usize) -> Option<f64> {
    let control = How::ALL.iter().position(|how| *how == How::Control)?;
    let (low, median, high) = quartiles(samples.get(&(control, threads))?);
    let varied = (high - low) / median;
    (varied > STEADY).then_some(varied)
}

fn rows(subjects: &[Subject], case: Case, threads: usize, samples: &Samples) -> Vec<Row> {
    let list = |index, threads| samples.get(&(index, threads)).map_or(&[][..], Vec::as_slice);
    let (bare, skipped) = (quartiles(list(0, threads)).1, unsteady(samples, threads));
    let row = |(index, subject): (usize, &Subject)| {
        let figures = match skipped.filter(|_| threads > 1) {
            Some(varied) => {
                Figures::Skipped { skipped: format!("the control varied by {:.0} %", varied * 100.0) }
            }
            None => {
                let (low_ns, ns, high_ns) = quartiles(list(index, threads));
                let (mops, rounds) = (threads as f64 * 1e3 / ns, list(index, threads).len());
                Figures::Hit { ns, added_ns: ns - bare, mops, low_ns, high_ns, rounds }
            }
        };
        let walk = if case == Case::Walk { "-walk" } else { "" };
        let case = format!("{REGIONS}x{PROBES}{walk}");
        let mut row = Row::new("lookup", &case, subject.how.name(), threads, false, figures);
        if threads > 1 && skipped.is_none() {
            row.shared = Some(shared([list(index, 1), list(index, threads)], [list(1, 1), list(1, threads)]));
        }
        row
    };
    subjects.iter().enumerate().map(row).collect()
}

/// Nanoseconds per lookup and thread, with all threads running at once.
fn together(subject: &Subject, case: Case, threads: usize, time: Duration) -> f64 {
    let barrier = Barrier::new(threads);
    let each: Vec<f64> = std::thread::scope(|scope| {
        let run = |thread| {
            let barrier = &barrier;
            scope.spawn(move || {
                pin(thread);
                barrier.wait();
                subject.timed(case, thread, time)
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).collect()
    });
    each.iter().sum::<f64>() / each.len() as f64
}
