//! What an exit records: the duration, in the function's block of this CPU's line.
//!
//! In: a duration. Out: code that counts the exit, adds to the sum and to a bucket, and keeps the extremes,
//! each by a commit of its own (STUB-4).
//!
//! ```text
//!   block on line l = CELL + STRIDE·l              CELL: the function's block on line 0
//!   Log       e      = floor(log2(TIME | 16))
//!             bucket = lesser(16 (e - 4) + (TIME >> (e - 4)), BUCKETS - 1)       16 = SUB, 4 = SUB_BITS
//!   Linear    bucket = 0 if TIME < min; else 1 + lesser((TIME - min) / step, n)  n = lesser(count, BUCKETS - 2)
//!   extremes  MIN_NOT = max(MIN_NOT, ~TIME), MAX = max(MAX, TIME)
//!
//!             x16 A                  x17 B      x14 CELL            x15 KEY   x13 INDEX  x12 TIME   x11 C
//!   bucket    scratch                scratch    block on line 0     -         bucket     duration   scratch
//!   owned     cpu, block on its line area       block on line 0     scratch   bucket     duration   ~TIME
//!   shared    1                      a word     block on some line  scratch   bucket     duration   scratch
//! ```
//!
//! All of them use flags. After `shared`, `TIME` is its complement, and `CELL` is at the bucket's word.

use trapline_record::hist;
use trapline_record::latency::{self as words, at};

use super::super::asm::{Asm, Cond, Fix, Reg, Update, ZERO};
use super::super::counted::by_thread;
use super::super::machine::{Machine, Rseq};
use super::super::rseq::{self, CPU_ID, Section};
use super::area::Latency;
use super::saves::{A, B, C, CELL, INDEX, KEY, TIME};
use crate::machine::{Buckets, ExitKind};

/// Jumps out of `record_owned`, and the places to which they come back.
#[derive(Debug)]
pub(super) struct Rare {
    rseq: Rseq,
    counted: Option<Section>,
    sections: [Section; 2],
    unregistered: Option<Fix>,
    clear: u64,
    minimum: Fix,
    after_minimum: u64,
    maximum: Fix,
    after_maximum: u64,
}

/// The same for `begun`.
#[derive(Debug)]
pub(super) struct RareBegun {
    section: Section,
    unregistered: Fix,
    clear: u64,
}

/// The block of one function's durations.
///
/// ```text
///   block of function f on line l = area + (f·lines + l)·STRIDE       l = 0: `at`; lines - 1: `last`
/// ```
#[derive(Clone, Copy, Debug)]
pub(super) struct DurationBlock {
    machine: Machine,
    /// Address of the block on line 0.
    at: u64,
    /// Shorter durations are counted, but not kept.
    min_ticks: u64,
    buckets: Buckets,
}

impl DurationBlock {
    pub(super) const fn of(machine: &Machine, latency: &Latency, function: u32) -> Self {
        let Latency { area, min_ticks, buckets, .. } = *latency;
        let at = area.wrapping_add(function as u64 * machine.lines as u64 * words::STRIDE);
        Self { machine: *machine, at, min_ticks, buckets }
    }
    /// Its address on line 0.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }
    /// Distance to the next function's block.
    pub(super) const fn stride(&self) -> u64 {
        self.machine.lines as u64 * words::STRIDE
    }
    /// Distance from line 0 to the last line.
    pub(super) const fn last_line(&self) -> u64 {
        self.stride() - words::STRIDE
    }
    /// Address of a word on the last line.
    pub(super) const fn last(&self, word: u64) -> u64 {
        self.at.wrapping_add(self.last_line() + word)
    }

    /// How the end of an armed call is counted. Its bucket counts it; only calls that are too short for one
    /// need more.
    pub(super) const fn armed_exit(&self) -> Option<ExitKind> {
        if self.min_ticks > 0 { Some(ExitKind::Return) } else { None }
    }

    /// Counts an armed call: BEGUN + 1. Uses `A`, `B`, `C`, `CELL`, `KEY` and flags.
    pub(super) fn begun(&self, asm: &mut Asm) -> Option<RareBegun> {
        asm.constant(CELL, self.at);
        let Some(rseq) = self.machine.rseq else {
            self.some_line(asm);
            self.update(asm, Update::Add, at::BEGUN, None);
            return None;
        };
        let mut unregistered = None;
        let section = rseq::section(asm, rseq, [B, A], |asm| {
            unregistered = Some(self.own_line(asm));
            add(asm, A, at::BEGUN, None);
        });
        let clear = asm.here();
        rseq::clear(asm, rseq, B);
        unregistered.map(|unregistered| RareBegun { section, unregistered, clear })
    }
    /// The path for threads without an area.
    pub(super) fn begun_rare(&self, asm: &mut Asm, rare: RareBegun) {
        asm.bind(rare.unregistered);
        self.some_line(asm);
        self.update(asm, Update::Add, at::BEGUN, None);
        asm.b(rare.clear);
        rseq::descriptors(asm, &[rare.section]);
    }

    /// Records the duration in `TIME`, in the block at `CELL`. `counted`: as what the exit is counted.
    pub(super) fn record(&self, asm: &mut Asm, counted: Option<ExitKind>) -> Option<Rare> {
        match self.machine.rseq {
            Some(rseq) => Some(self.record_owned(asm, rseq, counted)),
            None => {
                self.record_shared(asm, counted);
                None
            }
        }
    }

    /// `INDEX` = the bucket of `TIME`.
    fn bucket(&self, asm: &mut Asm) {
        match self.buckets {
            Buckets::Log => {
                // B = e - 4.
                asm.number(A, hist::SUB as u32);
                asm.or(A, A, TIME);
                asm.leading_zeros(A, A);
                asm.number(B, 63 - hist::SUB_BITS);
                asm.sub(B, B, A);
                asm.shift_right(INDEX, TIME, B);
                asm.add_shifted(INDEX, INDEX, B, hist::SUB_BITS);
                Self::cap(asm, hist::BUCKETS as u32 - 1);
            }
            Buckets::Linear { min, step, count } => {
                asm.constant(B, min);
                asm.constant(C, step.max(1));
                asm.sub(INDEX, TIME, B);
                asm.div(INDEX, INDEX, C);
                asm.add_imm(INDEX, INDEX, 1);
                Self::cap(asm, count.min(hist::BUCKETS as u32 - 2) + 1);
                asm.compare(TIME, B);
                asm.select(INDEX, ZERO, INDEX, Cond::Below);
            }
        }
    }
    fn cap(asm: &mut Asm, last: u32) {
        asm.number(A, last);
        asm.compare(INDEX, A);
        asm.select(INDEX, INDEX, A, Cond::BelowEq);
    }
    /// Jumps to the returned fix if the duration is too short to be kept. Uses `B` and flags.
    fn filter(&self, asm: &mut Asm) -> Option<Fix> {
        (self.min_ticks > 0).then(|| {
            asm.constant(B, self.min_ticks);
            asm.compare(TIME, B);
            asm.if_later(Cond::Below)
        })
    }

    /// One commit: `store` ends with the committing instruction. `A` = the function's block on this CPU's
    /// line; `B` and `KEY` are free.
    fn commit(&self, asm: &mut Asm, rseq: Rseq, store: impl FnOnce(&mut Asm)) -> Section {
        rseq::section(asm, rseq, [B, A], |asm| {
            asm.load32(A, B, CPU_ID);
            Self::line(asm);
            store(asm);
        })
    }
    /// In a section: `A` = the function's block on this CPU's line. Jumps to the returned fix in a thread without
    /// an area, and on a CPU that was not known when the plan was made. Uses `KEY` and flags.
    fn own_line(&self, asm: &mut Asm) -> Fix {
        asm.load32(A, B, CPU_ID);
        asm.number(KEY, self.machine.lines.saturating_sub(1));
        asm.compare(A, KEY);
        let unregistered = asm.if_later(Cond::AboveEq);
        Self::line(asm);
        unregistered
    }
    /// `CELL` = the function's block on a line that several threads may share. Uses `A` and `KEY`.
    fn some_line(&self, asm: &mut Asm) {
        match self.machine.rseq {
            Some(_) => asm.number(A, self.machine.lines - 1),
            None => by_thread(asm, [A, KEY], self.machine.lines),
        }
        Self::line(asm);
        asm.mov(CELL, A);
    }
    /// `A = CELL + STRIDE·A`. Uses `KEY`.
    fn line(asm: &mut Asm) {
        asm.number(KEY, words::STRIDE as u32);
        asm.mul_add(A, A, KEY, CELL);
    }

    /// The common case: this CPU's line.
    fn record_owned(&self, asm: &mut Asm, rseq: Rseq, counted: Option<ExitKind>) -> Rare {
        let mut unregistered = None;
        let counted = counted.map(|kind| {
            rseq::section(asm, rseq, [B, A], |asm| {
                unregistered = Some(self.own_line(asm));
                add(asm, A, kind.word(), None);
            })
        });
        let short = self.filter(asm);
        self.bucket(asm);
        let add_total = |asm: &mut Asm| add(asm, A, at::TOTAL, Some(TIME));
        let summed = if counted.is_some() {
            self.commit(asm, rseq, add_total)
        } else {
            rseq::section(asm, rseq, [B, A], |asm| {
                unregistered = Some(self.own_line(asm));
                add_total(asm);
            })
        };
        let sorted = self.commit(asm, rseq, |asm| {
            asm.add_shifted(B, A, INDEX, 3);
            add(asm, B, at::BUCKETS, None);
        });
        asm.not(C, TIME);
        asm.load_at(KEY, A, at::MIN_NOT as u32);
        asm.compare(C, KEY);
        let minimum = asm.if_later(Cond::Above);
        let after_minimum = asm.here();
        asm.load_at(KEY, A, at::MAX as u32);
        asm.compare(TIME, KEY);
        let maximum = asm.if_later(Cond::Above);
        let after_maximum = asm.here();
        if let Some(short) = short {
            asm.bind(short);
        }
        let clear = asm.here();
        rseq::clear(asm, rseq, B);
        let sections = [summed, sorted];
        Rare { rseq, counted, sections, unregistered, clear, minimum, after_minimum, maximum, after_maximum }
    }

    /// The paths for new extremes, and for threads without an area. The thread may have changed lines since
    /// an extreme was noticed, so the section compares again.
    pub(super) fn record_rare(&self, asm: &mut Asm, rare: Rare, counted: Option<ExitKind>) {
        let extremes = [
            (rare.minimum, rare.after_minimum, at::MIN_NOT, C),
            (rare.maximum, rare.after_maximum, at::MAX, TIME),
        ]
        .map(|(from, back, at, value)| {
            asm.bind(from);
            let section = self.commit(asm, rare.rseq, |asm| {
                asm.load_at(KEY, A, at as u32);
                asm.compare(value, KEY);
                let stays = asm.if_later(Cond::BelowEq);
                asm.store(value, A, at as u32);
                asm.bind(stays);
            });
            asm.b(back);
            section
        });
        if let Some(unregistered) = rare.unregistered {
            asm.bind(unregistered);
            self.record_shared(asm, counted);
            asm.b(rare.clear);
        }
        rseq::descriptors(asm, rare.counted.as_slice());
        rseq::descriptors(asm, &rare.sections);
        rseq::descriptors(asm, &extremes);
    }

    /// As `record_owned`, for threads without an area and processes without rseq: by atomic accesses to some
    /// line.
    fn record_shared(&self, asm: &mut Asm, counted: Option<ExitKind>) {
        self.bucket(asm);
        self.some_line(asm);
        if let Some(kind) = counted {
            self.update(asm, Update::Add, kind.word(), None);
        }
        let short = self.filter(asm);
        self.update(asm, Update::Add, at::TOTAL, Some(TIME));
        self.update(asm, Update::Max, at::MAX, Some(TIME));
        asm.not(TIME, TIME);
        self.update(asm, Update::Max, at::MIN_NOT, Some(TIME));
        asm.add_shifted(CELL, CELL, INDEX, 3);
        self.update(asm, Update::Add, at::BUCKETS, None);
        if let Some(short) = short {
            asm.bind(short);
        }
    }
    /// Updates a word of the block at `CELL` with a register, or 1.
    fn update(&self, asm: &mut Asm, how: Update, word: u64, value: Option<Reg>) {
        asm.add_imm(B, CELL, word as i32);
        if word == 0 {
            asm.mov(B, CELL);
        }
        let value = value.unwrap_or_else(|| {
            asm.one(A);
            A
        });
        asm.update(self.machine.lse, how, value, B, [C, KEY]);
    }
}

/// `[to + word] = [to + word] + value`, or + 1; the last instruction is the store. Uses `KEY`.
fn add(asm: &mut Asm, to: Reg, word: u64, value: Option<Reg>) {
    asm.load_at(KEY, to, word as u32);
    match value {
        Some(value) => asm.add(KEY, KEY, value),
        None => asm.add_imm(KEY, KEY, 1),
    }
    asm.store(KEY, to, word as u32);
}
