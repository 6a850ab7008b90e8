//! The rows of `pool`: of the tables, of the ten cases, and of the endurance run.

use std::fmt::Write as _;

use serde::Serialize;

use super::kind::PoolKind;
use super::storm::Tally;
use crate::x86_64::row::{Figures, Line};

/// One figure of the tables.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct PoolRow {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    bench: &'static str,
    /// `throughput` or `emulation`.
    case: &'static str,
    pub(super) how: &'static str,
    pub(super) threads: usize,
    sharing: &'static str,
    /// The number that was asked for; a pool may have more objects.
    maxactive: u32,
    /// Time per pair of get and put, and per thread.
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Sum of all rounds.
    hits: u64,
    misses: u64,
    /// Bytes of the whole pool, objects of 64 bytes included.
    bytes: usize,
    /// Throughput divided by that of the control with the same number of threads.
    of_control: f64,
}

impl PoolRow {
    pub(super) fn new(
        case: &'static str,
        how: PoolKind,
        threads: usize,
        maxactive: u32,
        figures: Figures,
    ) -> Self {
        Self {
            kind: "bench",
            schema: 1,
            bench: "pool",
            case,
            how: how.name(),
            threads,
            sharing: how.sharing(),
            maxactive,
            figures,
            hits: 0,
            misses: 0,
            bytes: 0,
            of_control: f64::NAN,
        }
    }
    pub(super) fn counted(self, hits: u64, misses: u64, bytes: usize, of_control: f64) -> Self {
        Self { hits, misses, bytes, of_control, ..self }
    }
}

impl Line for PoolRow {
    fn text(&self) -> String {
        let name = format!(
            "pool-{} {}:max={} {}T {}",
            self.case, self.how, self.maxactive, self.threads, self.sharing
        );
        match &self.figures {
            Figures::Hit { ns, added_ns, mops, low_ns, high_ns, rounds } => format!(
                "{name:44} {ns:9.2} ns/pair  +{added_ns:8.2} ns  {mops:9.3}M/s  {:5.3} of control  {} hits {} misses  {} bytes  ({low_ns:.2} .. {high_ns:.2}, {rounds} rounds)",
                self.of_control, self.hits, self.misses, self.bytes
            ),
            Figures::Skipped { skipped } => format!("{name:44} skipped: {skipped}"),
        }
    }
}

/// Gets that returned an object, and gets that did not.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub(super) struct Count {
    pub(super) hits: u64,
    pub(super) misses: u64,
}

/// The results of one worker.
#[derive(Clone, Copy, Default, Debug, Serialize)]
pub(super) struct PerCpu {
    pub(super) cpu: usize,
    pub(super) usecs: u64,
    pub(super) thread: Count,
    pub(super) irq: Count,
}

/// One of the ten cases.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CaseRow {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) schema: u32,
    pub(super) bench: &'static str,
    pub(super) case: &'static str,
    pub(super) how: &'static str,
    pub(super) cpus: Vec<PerCpu>,
    pub(super) usecs: u64,
    /// Bytes allocated for the pool, and bytes freed again.
    pub(super) allocated: usize,
    pub(super) freed: usize,
    /// Number of puts that were reported as the last.
    pub(super) released: u32,
    /// Number of objects held when the pool was closed.
    pub(super) held_at_close: u32,
}

impl CaseRow {
    pub(super) fn sum(&self) -> (Count, Count) {
        let sum = |of: fn(&PerCpu) -> Count| {
            self.cpus.iter().map(of).fold(Count::default(), |sum, one| Count {
                hits: sum.hits + one.hits,
                misses: sum.misses + one.misses,
            })
        };
        (sum(|cpu| cpu.thread), sum(|cpu| cpu.irq))
    }
    /// One line of the closing summary.
    pub(super) fn summary(&self) -> String {
        let (thread, irq) = self.sum();
        format!(
            "    duration: {}us  hits: {:10}  miss: {:10}  {}",
            self.usecs,
            thread.hits + irq.hits,
            thread.misses + irq.misses,
            self.case
        )
    }
}

fn counts(text: &mut String, thread: Count, irq: Count) {
    let total = Count { hits: thread.hits + irq.hits, misses: thread.misses + irq.misses };
    for (name, count) in [("thread:", thread), ("irq:   ", irq), ("total: ", total)] {
        let _ = write!(text, "\n\t{name} {:16} hits  {:16} miss", count.hits, count.misses);
    }
}

impl Line for CaseRow {
    /// In the form that the kernel's module prints (lib/test_objpool.c, restated).
    fn text(&self) -> String {
        let mut text = format!("Testing: {}", self.case);
        for cpu in &self.cpus {
            let _ = write!(text, "\nCPU: {}  duration: {}us", cpu.cpu, cpu.usecs);
            counts(&mut text, cpu.thread, cpu.irq);
        }
        let (thread, irq) = self.sum();
        let _ = write!(text, "\nALL:  nthreads: {}  duration: {}us\nSUM:", self.cpus.len(), self.usecs);
        counts(&mut text, thread, irq);
        let (allocated, freed) = (self.allocated, self.freed);
        let _ = write!(
            text,
            "\nmemory allocation summary for {}\n    pool: {allocated} - {freed} = {}\n    last: {} time, {} held when closed",
            self.case,
            allocated.wrapping_sub(freed).cast_signed(),
            self.released,
            self.held_at_close
        );
        text
    }
}

/// A long run with signals, migration, and threads that end.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct EnduranceRow {
    #[serde(rename = "type")]
    kind: &'static str,
    schema: u32,
    bench: &'static str,
    case: &'static str,
    how: &'static str,
    threads: usize,
    maxactive: u32,
    operations: u64,
    misses: u64,
    signals: u64,
    doubled: u64,
    lost: u64,
    seconds: f64,
}

impl EnduranceRow {
    pub(super) fn new(how: PoolKind, threads: usize, maxactive: u32, tally: Tally, seconds: f64) -> Self {
        let Tally { operations, misses, signals, doubled, lost } = tally;
        let (kind, bench, case, how) = ("bench", "pool", "endurance", how.name());
        Self {
            kind,
            schema: 1,
            bench,
            case,
            how,
            threads,
            maxactive,
            operations,
            misses,
            signals,
            doubled,
            lost,
            seconds,
        }
    }
}

impl Line for EnduranceRow {
    fn text(&self) -> String {
        format!(
            "pool-endurance {}:max={} {}T  {} operations, {} in signal handlers: {} lost, {} held twice, {} missed, in {:.1} s",
            self.how,
            self.maxactive,
            self.threads,
            self.operations,
            self.signals,
            self.lost,
            self.doubled,
            self.misses,
            self.seconds
        )
    }
}
