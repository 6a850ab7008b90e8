//! What an exit records: the duration, in the function's block of this CPU's line.
//!
//! In: rdi = duration, rsi = the function's block on line 0. Out: code that counts the exit, adds to the sum
//! and to a bucket, and keeps the extremes, each by a commit of its own (STUB-4).
//!
//! ```text
//!   rdi = d, the duration;  rsi = the function's block on line 0
//!   rdx = STRIDE · CPU; without rseq, STRIDE · some line; without an area, STRIDE · (lines - 1)
//!   rax = bucket, later the bucket's address on line 0, later ~d
//!   a word of the block is [rsi + rdx + at]
//! ```
//!
//! ```text
//!   counted      [RETURNS or TAIL_EXITS] += 1; armed calls only with min_ticks (`armed_exit`)
//!   short        if d < min_ticks, nothing more
//!   summed       [TOTAL] += d
//!   sorted       [BUCKETS + 8 · bucket] += 1
//!   minimum      [MIN_NOT] = max([MIN_NOT], ~d)
//!   maximum      [MAX] = max([MAX], d)
//! ```
//!
//! The bucket of a duration d:
//!
//! ```text
//!   Log          e = floor(log2(d | 16));  bucket = min((e - 4) · 16 + (d >> (e - 4)), BUCKETS - 1)
//!   Linear       d < min:  bucket = 0
//!                d >= min: bucket = 1 + min((d - min) / step, count), count at most BUCKETS - 2
//! ```

use trapline_record::hist;
use trapline_record::latency::{self as words, at};

use super::super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RCX, RDI, RDX, RSI, Reg, Shift};
use super::super::machine::Machine;
use super::super::rseq::{self, CPU_ID, Section};
use super::area::Latency;
use crate::machine::{Buckets, ExitKind, Rseq};

/// Jumps out of `record_owned`, and the places to which they come back.
#[derive(Debug)]
pub(in super::super) struct Rare {
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
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct RareBegun {
    rseq: Rseq,
    section: Section,
    unregistered: Fix,
    clear: u64,
}

/// The block of one function's durations.
#[derive(Clone, Copy, Debug)]
pub(super) struct DurationBlock {
    machine: Machine,
    /// Address of the block on line 0; with functions' common code, of the block before function 0's.
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
    /// The block of the function whose number + 1 is in rcx: see [`Self::of_rcx`] and [`Self::add_one`].
    pub(super) const fn of_any(machine: &Machine, latency: &Latency) -> Self {
        let first = Self::of(machine, latency, 0);
        Self { at: first.at.wrapping_sub(first.stride() as u64), ..first }
    }
    /// Its address on line 0.
    pub(super) const fn at(&self) -> u64 {
        self.at
    }
    /// `to` = the address on line 0 of the block of the function whose number + 1 is in rcx. Uses rax and flags.
    pub(super) fn of_rcx(&self, asm: &mut Asm<'_>, to: Reg) {
        asm.imul_imm(to, RCX, self.stride(), true);
        asm.mov_imm64(RAX, self.at);
        asm.alu(Alu::Add, to, RAX);
    }
    /// Adds one to a word on the last line of that block. Uses rax, rdx and flags.
    pub(super) fn add_one(&self, asm: &mut Asm<'_>, at: u64) {
        self.of_rcx(asm, RDX);
        asm.alu_mem_imm(Alu::Add, Mem::At(RDX, (self.last_line() + at) as i32), 1, true);
    }
    /// Distance to the next function's block.
    pub(super) const fn stride(&self) -> i32 {
        (self.machine.lines as u64 * words::STRIDE) as i32
    }
    /// Distance from line 0 to the last line.
    pub(super) const fn last_line(&self) -> u64 {
        (self.machine.lines as u64 - 1) * words::STRIDE
    }

    /// How the end of an armed call is counted. Its bucket counts it; only calls that are too short for one
    /// need more.
    pub(super) const fn armed_exit(&self) -> Option<ExitKind> {
        if self.min_ticks > 0 { Some(ExitKind::Return) } else { None }
    }

    /// Counts an armed call. Uses rdx, rsi and flags.
    ///
    /// ```text
    ///   rsi = the block on line 0;  rdx = STRIDE · line
    ///   [rsi + rdx + BEGUN] += 1
    /// ```
    pub(super) fn begun(&self, asm: &mut Asm<'_>) -> Option<RareBegun> {
        asm.mov_imm64(RSI, self.at);
        let Some(rseq) = self.machine.rseq else {
            self.some_line(asm);
            asm.alu_mem_imm(Alu::Add, word(at::BEGUN), 1, true);
            return None;
        };
        let (section, unregistered) = rseq::section_with(asm, rseq, RDX, |asm| {
            let unregistered = self.own_line(asm, rseq);
            asm.alu_mem_imm(Alu::Add, word(at::BEGUN), 1, false);
            unregistered
        });
        let clear = asm.here();
        rseq::clear(asm, rseq);
        Some(RareBegun { rseq, section, unregistered, clear })
    }
    /// The path for threads without an area.
    pub(super) fn begun_rare(&self, asm: &mut Asm<'_>, rare: RareBegun) {
        asm.bind(rare.unregistered);
        self.some_line(asm);
        asm.alu_mem_imm(Alu::Add, word(at::BEGUN), 1, true);
        asm.jmp(rare.clear);
        rseq::descriptors(asm, rare.rseq, &[rare.section]);
    }

    /// Records the duration in rdi, in the block at rsi. `counted`: as what the exit is counted. Uses rax, rcx,
    /// rdx and flags.
    pub(super) fn record(&self, asm: &mut Asm<'_>, counted: Option<ExitKind>) -> Option<Rare> {
        match self.machine.rseq {
            Some(rseq) => Some(self.record_owned(asm, rseq, counted)),
            None => {
                self.record_shared(asm, counted);
                None
            }
        }
    }

    /// rdx = STRIDE · CPU. Jumps to the returned fix in a thread without an area, and on a CPU that was not
    /// known when the plan was made.
    fn own_line(&self, asm: &mut Asm<'_>, rseq: Rseq) -> Fix {
        asm.load32(RDX, Mem::Fs(rseq.offset + CPU_ID));
        let unregistered = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, RDX, self.machine.lines as i32 - 1, false);
            asm.jcc_later(Cond::AboveEq)
        });
        asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
        unregistered
    }
    /// rdx = STRIDE · a line that several threads may share.
    fn some_line(&self, asm: &mut Asm<'_>) {
        match self.machine.rseq {
            Some(_) => asm.mov_imm32(RDX, self.machine.lines - 1),
            None => rseq::any_line(asm, RDX, self.machine.rdpid, self.machine.lines),
        }
        asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
    }

    /// rax = the bucket of rdi. Uses rcx, rdx and flags.
    fn bucket(&self, asm: &mut Asm<'_>) {
        match self.buckets {
            Buckets::Log => {
                // rcx = e, later e - 4, later (e - 4) · 16.
                asm.mov(RAX, RDI);
                asm.alu_imm(Alu::Or, RAX, hist::SUB as i32, true);
                asm.bsr(RCX, RAX);
                asm.mov(RAX, RDI);
                asm.alu_imm(Alu::Sub, RCX, hist::SUB_BITS as i32, false);
                asm.shift_cl(Shift::Right, RAX);
                asm.shift(Shift::Left, RCX, hist::SUB_BITS as u8, false);
                asm.alu(Alu::Add, RAX, RCX);
                self.cap(asm, hist::BUCKETS as u32 - 1);
            }
            Buckets::Linear { min, step, count } => {
                asm.mov_imm64(RCX, min);
                asm.mov(RAX, RDI);
                asm.mov_imm32(RDX, 0);
                asm.alu(Alu::Sub, RAX, RCX);
                let enough = asm.jcc_later(Cond::AboveEq);
                asm.mov_imm32(RAX, 0);
                let below = asm.jmp_later();
                asm.bind(enough);
                asm.mov_imm64(RCX, step.max(1));
                asm.div(RCX);
                asm.alu_imm(Alu::Add, RAX, 1, true);
                self.cap(asm, count.min(hist::BUCKETS as u32 - 2) + 1);
                asm.bind(below);
            }
        }
    }
    fn cap(&self, asm: &mut Asm<'_>, last: u32) {
        let fits = asm.unbroken(|asm| {
            asm.alu_imm(Alu::Cmp, RAX, last as i32, true);
            asm.jcc_later(Cond::BelowEq)
        });
        asm.mov_imm32(RAX, last);
        asm.bind(fits);
    }
    /// Jumps to the returned fix if the duration in rdi is too short to be kept. Uses rcx and flags.
    fn filter(&self, asm: &mut Asm<'_>) -> Option<Fix> {
        (self.min_ticks > 0).then(|| {
            asm.mov_imm64(RCX, self.min_ticks);
            asm.unbroken(|asm| {
                asm.alu(Alu::Cmp, RDI, RCX);
                asm.jcc_later(Cond::Below)
            })
        })
    }

    /// One commit. `store` emits the committing instruction; rdx = STRIDE · CPU.
    fn commit(&self, asm: &mut Asm<'_>, rseq: Rseq, store: impl FnOnce(&mut Asm<'_>)) -> Section {
        rseq::section(asm, rseq, RDX, |asm| {
            asm.load32(RDX, Mem::Fs(rseq.offset + CPU_ID));
            asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
            store(asm);
        })
    }

    /// The common case: this CPU's line. Uses rax, rcx, rdx and flags.
    fn record_owned(&self, asm: &mut Asm<'_>, rseq: Rseq, counted: Option<ExitKind>) -> Rare {
        let mut unregistered = None;
        let counted = counted.map(|kind| {
            rseq::section(asm, rseq, RDX, |asm| {
                unregistered = Some(self.own_line(asm, rseq));
                asm.alu_mem_imm(Alu::Add, word(kind.word()), 1, false);
            })
        });
        let short = self.filter(asm);
        self.bucket(asm);
        let add_total = |asm: &mut Asm<'_>| asm.alu_store(Alu::Add, word(at::TOTAL), RDI, false);
        let summed = if counted.is_some() {
            self.commit(asm, rseq, add_total)
        } else {
            rseq::section(asm, rseq, RDX, |asm| {
                unregistered = Some(self.own_line(asm, rseq));
                add_total(asm);
            })
        };
        asm.lea(RAX, Mem::Sum(RSI, RAX, 3, at::BUCKETS as i32));
        let sorted =
            self.commit(asm, rseq, |asm| asm.alu_mem_imm(Alu::Add, Mem::Sum(RAX, RDX, 0, 0), 1, false));
        asm.mov(RAX, RDI);
        asm.not(RAX);
        let minimum = asm.unbroken(|asm| {
            asm.alu_load(Alu::Cmp, RAX, word(at::MIN_NOT));
            asm.jcc_later(Cond::Above)
        });
        let after_minimum = asm.here();
        let maximum = asm.unbroken(|asm| {
            asm.alu_load(Alu::Cmp, RDI, word(at::MAX));
            asm.jcc_later(Cond::Above)
        });
        let after_maximum = asm.here();
        if let Some(short) = short {
            asm.bind(short);
        }
        let clear = asm.here();
        rseq::clear(asm, rseq);
        let sections = [summed, sorted];
        Rare { rseq, counted, sections, unregistered, clear, minimum, after_minimum, maximum, after_maximum }
    }

    /// The paths for new extremes, and for threads without an area. The thread may have changed lines since
    /// an extreme was noticed, so the section compares again.
    pub(super) fn record_rare(&self, asm: &mut Asm<'_>, rare: Rare, counted: Option<ExitKind>) {
        let extremes = [
            (rare.minimum, rare.after_minimum, at::MIN_NOT, RAX),
            (rare.maximum, rare.after_maximum, at::MAX, RDI),
        ]
        .map(|(from, back, at, value)| {
            asm.bind(from);
            let section = self.commit(asm, rare.rseq, |asm| {
                asm.alu_load(Alu::Cmp, value, word(at));
                let stays = asm.jcc_later(Cond::BelowEq);
                asm.store(word(at), value);
                asm.bind(stays);
            });
            asm.jmp(back);
            section
        });
        if let Some(unregistered) = rare.unregistered {
            asm.bind(unregistered);
            self.record_shared(asm, counted);
            asm.jmp(rare.clear);
        }
        rseq::descriptors(asm, rare.rseq, rare.counted.as_slice());
        rseq::descriptors(asm, rare.rseq, &rare.sections);
        rseq::descriptors(asm, rare.rseq, &extremes);
    }

    /// As `record_owned`, for threads without an area and processes without rseq: `lock add` on some line.
    fn record_shared(&self, asm: &mut Asm<'_>, counted: Option<ExitKind>) {
        self.bucket(asm);
        self.some_line(asm);
        if let Some(kind) = counted {
            asm.alu_mem_imm(Alu::Add, word(kind.word()), 1, true);
        }
        let short = self.filter(asm);
        asm.lea(RAX, Mem::Sum(RSI, RAX, 3, at::BUCKETS as i32));
        asm.alu_mem_imm(Alu::Add, Mem::Sum(RAX, RDX, 0, 0), 1, true);
        asm.alu_store(Alu::Add, word(at::TOTAL), RDI, true);
        asm.mov(RCX, RDI);
        asm.not(RCX);
        for (at, value) in [(at::MIN_NOT, RCX), (at::MAX, RDI)] {
            let again = asm.here();
            asm.load(RAX, word(at));
            asm.alu(Alu::Cmp, value, RAX);
            let stays = asm.jcc_later(Cond::BelowEq);
            asm.cmpxchg(word(at), value);
            asm.jcc(Cond::NotEqual, again);
            asm.bind(stays);
        }
        if let Some(short) = short {
            asm.bind(short);
        }
    }
}

/// `[rsi + rdx + at]`: a word of the function's block.
const fn word(at: u64) -> Mem {
    Mem::Sum(RSI, RDX, 0, at as i32)
}
