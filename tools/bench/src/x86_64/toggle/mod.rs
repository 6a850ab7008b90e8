//! `trapline-bench toggle`: whether threads that run the code see an eight-byte write inside a cache line
//! whole, and (`--by run`) each aligned word of a longer write.
//!
//! In: the number of writes. Out: a row for each kind of head: calls, calls that took the jump, times that a
//! thread saw the code change, threads that were inside a window, wrong results. `trapline_patch::cpu` asks
//! for a run of 10⁹ writes without a wrong result before it trusts a CPU model. Each CPU has a thread that
//! calls; the writer takes turns on the CPUs. A call that runs half a write either returns another result, or
//! ends the program with status 3.
//! Does not: write across a line (no code relies on that).

mod arena;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::x86_64::row::Line;
use arena::{Arena, By, Cell, HEADS, OFFSETS, Run, call, traps};
use trapline_bench::functions::pin_to;

/// Calls between two reads of which function is being changed.
const CALLS: u64 = 256;
/// Turns of the writer on each offset.
const TURNS: usize = 4;

/// What threads saw of one kind of head.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ToggleRow {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    bench: &'static str,
    /// Name of the head.
    case: &'static str,
    /// `store`, `write` or `run`.
    how: &'static str,
    /// Number of threads that call.
    threads: usize,
    /// Number of offsets in a cache line.
    offsets: usize,
    /// Number of windows changed.
    toggles: u64,
    seconds: f64,
    calls: u64,
    /// Calls that took the jump.
    jumped: u64,
    /// Times that a thread's next call differed from its last one, because it saw a write.
    seen: u64,
    /// Threads that stood inside the window when the jump was written.
    trapped: u64,
    /// Calls with a result of neither version of the code.
    wrong: u64,
}

impl Line for ToggleRow {
    fn text(&self) -> String {
        let share = 100.0 * self.seen as f64 / self.toggles.max(1) as f64;
        format!(
            "toggle {:8} {} {}T  {} windows changed at {} offsets in {:.1} s: {} calls, {} by the jump, {} changes seen ({share:.2} %), {} inside, {} wrong",
            self.case,
            self.how,
            self.threads,
            self.toggles,
            self.offsets,
            self.seconds,
            self.calls,
            self.jumped,
            self.seen,
            self.trapped,
            self.wrong
        )
    }
}

#[derive(Clone, Copy, Default)]
struct Tally {
    calls: u64,
    jumped: u64,
    seen: u64,
    wrong: u64,
}

/// What the writer changes at present.
struct Target {
    offset: AtomicUsize,
    over: AtomicBool,
}

/// How to write.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Writes {
    /// `toggle`: windows changed, in all.
    #[arg(long, default_value_t = 10_000_000)]
    toggles: u64,
    /// `toggle`: how code is written.
    #[arg(long, value_enum, default_value_t = By::Store)]
    by: By,
    /// `toggle`: spin-loop hints between two writes; with more, threads see a larger share of them.
    #[arg(long, default_value_t = 2)]
    gap: u32,
}

/// Changes every kind of head, this many times in all.
pub(crate) fn run(writes: Writes, mut take: impl FnMut(&ToggleRow) -> Result<()>) -> Result<()> {
    let arena = Arena::new().context("no memory for code")?;
    // Read before any thread is bound to one CPU.
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let each = Writes { toggles: writes.toggles.div_ceil(HEADS.len() as u64), ..writes };
    for (head, name) in HEADS.iter().map(|head| head.name).enumerate() {
        let row = one(&arena, head, name, each, cpus)?;
        take(&row)?;
        ensure!(row.wrong == 0, "{} wrong results: eight-byte writes are not seen whole here", row.wrong);
    }
    Ok(())
}

fn one(arena: &Arena, head: usize, case: &'static str, writes: Writes, threads: usize) -> Result<ToggleRow> {
    let target = Target { offset: AtomicUsize::new(0), over: AtomicBool::new(false) };
    let (begun, trapped) = (Instant::now(), traps());
    let (written, tallies) = std::thread::scope(|scope| {
        let target = &target;
        let callers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    pin_to(thread);
                    caller(arena, head, target)
                })
            })
            .collect();
        let written = match writes.by {
            By::Run => run_writer(arena, head, writes, threads, target),
            _ => writer(arena, head, writes, threads, target),
        };
        target.over.store(true, Ordering::Relaxed);
        let tallies: Vec<_> = callers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        (written, tallies)
    });
    let mut sum = Tally::default();
    for tally in tallies {
        let tally = tally.ok().context("a thread panicked")?;
        sum.calls += tally.calls;
        sum.jumped += tally.jumped;
        sum.seen += tally.seen;
        sum.wrong += tally.wrong;
    }
    let Tally { calls, jumped, seen, wrong } = sum;
    Ok(ToggleRow {
        kind: "bench",
        schema: 1,
        bench: "toggle",
        case,
        how: writes.by.name(),
        threads,
        offsets: if writes.by == By::Run {
            arena.runs(head)?.iter().map(|run| run.offsets.len()).sum()
        } else {
            OFFSETS
        },
        toggles: written?,
        seconds: begun.elapsed().as_secs_f64(),
        calls,
        jumped,
        seen,
        trapped: traps() - trapped,
        wrong,
    })
}

fn caller(arena: &Arena, head: usize, target: &Target) -> Tally {
    let mut tally = Tally::default();
    while !target.over.load(Ordering::Relaxed) {
        let entry = arena.entry(Cell::new(head, target.offset.load(Ordering::Relaxed)));
        let mut last = call(entry, 0).1;
        for x in 0..CALLS {
            let (result, jumped) = call(entry, x);
            tally.jumped += u64::from(jumped);
            tally.seen += u64::from(jumped != last);
            tally.wrong += u64::from(result != x + 7);
            last = jumped;
        }
        tally.calls += CALLS;
    }
    tally
}

/// Goes through the offsets several times, each time on another CPU. Returns the number of writes.
fn writer(arena: &Arena, head: usize, writes: Writes, cpus: usize, target: &Target) -> Result<u64> {
    let pairs = writes.toggles.div_ceil((2 * TURNS * OFFSETS) as u64);
    for turn in 0..TURNS {
        pin_to(turn % cpus);
        for offset in 0..OFFSETS {
            let cell = Cell::new(head, offset);
            let [old, new] = cell.words();
            target.offset.store(offset, Ordering::Relaxed);
            for _ in 0..pairs {
                for word in [new, old] {
                    arena.put(cell, word, writes.by).context("a write failed")?;
                    (0..writes.gap).for_each(|_| std::hint::spin_loop());
                }
            }
        }
    }
    Ok(pairs * 2 * (TURNS * OFFSETS) as u64)
}

/// The same by whole pages. The threads call one window of the page after the other. Returns the number of
/// windows changed.
fn run_writer(arena: &Arena, head: usize, writes: Writes, cpus: usize, target: &Target) -> Result<u64> {
    let runs = arena.runs(head)?;
    let windows: usize = runs.iter().map(|run| run.offsets.len()).sum();
    let rounds = (writes.toggles as usize).div_ceil(2 * TURNS * windows);
    let one = |run: &Run, rounds: usize| -> Result<()> {
        for _ in 0..rounds {
            for jumps in [true, false] {
                arena.put_run(run, jumps).context("a write failed")?;
                (0..writes.gap).for_each(|_| std::hint::spin_loop());
            }
        }
        Ok(())
    };
    for turn in 0..TURNS {
        pin_to(turn % cpus);
        for run in &runs {
            for &offset in &run.offsets {
                target.offset.store(offset, Ordering::Relaxed);
                one(run, rounds.div_ceil(run.offsets.len()))?;
            }
        }
    }
    let of =
        |run: &Run| 2 * TURNS * rounds.div_ceil(run.offsets.len()) * run.offsets.len() * run.offsets.len();
    Ok(runs.iter().map(of).sum::<usize>() as u64)
}
