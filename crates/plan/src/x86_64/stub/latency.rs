//! Time from entry to return: a stamp at the entry, a histogram at every exit.
//!
//! A stub saves what it uses below the stack pointer, which kernel and language runtimes leave alone (the psABI red
//! zone), and finds the slot of (function, stack pointer at entry):
//!
//! ```text
//!   S        stack pointer at the function's entry, and again when its `ret` or tail jump is about to run
//!            (128 bytes of the function's own red zone, where it may be live)     <- rsp in the stub
//!   S-8 …    rax, flags, rdx, rsi, rcx, rdi; r8; r9, r10 on rare paths
//! ```
//!
//! Slots are private memory, a block of 512 to each stack page; see `record::latency`. The clock is read as the last
//! thing before the stamp and as the first thing at an exit. What an exit finds is written word by word, each by an
//! rseq commit of its own; rare words always by `lock add` on the last line. Everything stands in line: calls into
//! shared routines would cost 3 ns of the 25 (COST-1). What is rare stands behind the displaced code.
//! With `outermost` a slot belongs to (thread, function) and holds {tsc, S of the outermost call}: deeper calls are
//! ignored, and a call at a shallower place proves that the remembered one is gone. In Go the thread is the goroutine
//! and S its distance from the stack's end, because stacks move.

use trapline_record::hist;
use trapline_record::latency::{self as words, at};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, R10, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::rseq::{self, CPU_ID, PHI, Section};
use super::{Kind, Machine, Pending, Rseq, Site};

/// How durations fall into buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Buckets {
    /// `record::hist`: 16 to an octave.
    #[default]
    Log,
    /// Bucket 0 is below `min`; then `count` buckets of `step` ticks; then one for all above.
    Linear {
        /// Lower bound of bucket 1, in ticks.
        min: u64,
        /// Width in ticks; 0 is taken as 1.
        step: u64,
        /// At most `record::hist::BUCKETS - 2`; more is cut.
        count: u32,
    },
}

/// What is to be timed, and where it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Address of function 0's block on line 0, within ±2 GiB of the code.
    pub area: u64,
    /// How many functions the area holds.
    pub functions: u32,
    /// Address of the stamp memory: tags, then blocks. Anywhere.
    pub stamps: u64,
    /// Address of the control block's MISSED word, within ±2 GiB of the code.
    pub missed: u64,
    /// Calls shorter than this many ticks count as returns only, and enter no bucket, total, minimum or maximum.
    pub min_ticks: u64,
    /// How durations fall into buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go: Option<i32>,
}

/// How a function is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// By `ret`.
    Return,
    /// By a jump, or by running on, into another function.
    Tail,
}

/// Offset of the saves from rsp in the stub.
mod save {
    pub(super) const RAX: i32 = -8;
    pub(super) const FLAGS: i32 = -16;
    pub(super) const RDX: i32 = -24;
    pub(super) const RSI: i32 = -32;
    pub(super) const RCX: i32 = -40;
    pub(super) const RDI: i32 = -48;
    pub(super) const R8: i32 = -56;
    pub(super) const R9: i32 = -64;
    pub(super) const R10: i32 = -72;
}
const RED_ZONE: i32 = 128;
/// Leaves the bits of a 32-bit hash that number a block.
const INDEX_SHIFT: u8 = 32 - words::STAMP_BLOCKS.trailing_zeros() as u8;

/// One site to be timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// What is timed, and where it is kept.
    pub latency: &'a Latency,
    /// The function's number, below `latency.functions`.
    pub function: u32,
    /// What is dead at the site.
    pub site: Site,
}

/// What is left to append behind the displaced code.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
pub(super) enum Tail {
    Enter {
        loop_entry: bool,
        occupied: Fix,
        stamp: u64,
        lookup: Lookup,
        leave: u64,
    },
    Exit {
        kind: ExitKind,
        lookup: Lookup,
        other: Fix,
        negative: Fix,
        clamped: u64,
        rare: Option<Rare>,
        leave: u64,
    },
}

/// A search for a slot, and where it leaves the usual path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    nobody: Option<Fix>,
    elsewhere: Fix,
    found: u64,
}

/// Jumps out of `record_owned` and the places to come back to.
#[derive(Debug)]
pub(super) struct Rare {
    rseq: Rseq,
    sections: [Section; 3],
    unregistered: Option<Fix>,
    clear: u64,
    minimum: Fix,
    after_minimum: u64,
    maximum: Fix,
    after_maximum: u64,
}

/// Appends the stub of an entry: the part before the displaced code. With `loop_entry` the entry is also a branch
/// target, so the first stamp of (function, S) stands until the exit.
pub fn latency_enter(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, loop_entry: bool) -> Pending {
    let mut asm = Asm::new(out, at);
    let tail = timed.enter(&mut asm, loop_entry);
    Pending::new(&asm, Kind::Latency(*timed.machine, *timed.latency, timed.function, timed.site, tail))
}

/// Appends the stub of an exit, to stand right before the `ret` or jump that leaves: the part before it.
pub fn latency_exit(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, kind: ExitKind) -> Pending {
    let mut asm = Asm::new(out, at);
    let tail = timed.exit(&mut asm, kind);
    Pending::new(&asm, Kind::Latency(*timed.machine, *timed.latency, timed.function, timed.site, tail))
}

/// Appends the whole stub of a conditional jump out of the function: `condition` is the low nibble of its opcode,
/// `target` where it leads. What follows runs if it is not taken.
pub fn latency_exit_branch(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, condition: u8, target: u64) {
    let mut asm = Asm::new(out, at);
    let stay = asm.jcc_raw_later(condition ^ 1);
    let tail = timed.exit(&mut asm, ExitKind::Tail);
    asm.jmp(target);
    timed.finish(&mut asm, tail);
    asm.bind(stay);
}

fn spill(asm: &mut Asm<'_>, at: i32, reg: Reg) {
    asm.store(Mem::At(RSP, at), reg);
}
fn reload(asm: &mut Asm<'_>, reg: Reg, at: i32) {
    asm.load(reg, Mem::At(RSP, at));
}

/// `rax = rdtsc`, spoiling rdx.
fn clock(asm: &mut Asm<'_>) {
    asm.rdtsc();
    asm.shift(Shift::Left, RDX, 32, true);
    asm.alu(Alu::Or, RAX, RDX);
}

/// Whether a missing tag is claimed or only reported.
#[derive(Clone, Copy, PartialEq)]
enum Claim {
    Yes,
    No,
}

impl Timed<'_> {
    const fn stride(&self) -> i32 {
        (self.machine.lines as u64 * words::STRIDE) as i32
    }
    /// The function's block on line 0.
    const fn block(&self) -> u64 {
        self.latency.area.wrapping_add(self.function as u64 * self.machine.lines as u64 * words::STRIDE)
    }
    /// A word of the function's block on the last line.
    const fn last(&self, word: u64) -> Mem {
        Mem::Rip(self.block().wrapping_add((self.machine.lines as u64 - 1) * words::STRIDE + word))
    }
    /// Whether S must be kept in a register (r8), rather than computed from rsp again.
    const fn special(&self) -> bool {
        self.latency.outermost || self.latency.go.is_some()
    }
    /// Bytes from the stub's stack pointer to S.
    const fn skipped(&self) -> i32 {
        if self.site.red_zone_live { RED_ZONE } else { 0 }
    }

    fn saved(&self, exit: bool) -> impl Iterator<Item = (Reg, i32)> {
        let site = self.site;
        let also = [(exit, RCX, save::RCX), (exit, RDI, save::RDI), (self.special(), R8, save::R8)];
        [(true, RDX, save::RDX), (true, RSI, save::RSI)]
            .into_iter()
            .chain(also)
            .filter(move |(used, reg, _)| *used && site.dead >> reg.0 & 1 == 0)
            .map(|(_, reg, at)| (reg, at))
    }
    fn prologue(&self, asm: &mut Asm<'_>, exit: bool) {
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
        }
        if self.site.dead & 1 == 0 {
            spill(asm, save::RAX, RAX);
        }
        if !self.site.flags_dead {
            asm.flags_to_rax();
            asm.store32(Mem::At(RSP, save::FLAGS), RAX);
        }
        for (reg, at) in self.saved(exit) {
            spill(asm, at, reg);
        }
    }
    fn epilogue(&self, asm: &mut Asm<'_>, exit: bool) {
        if !self.site.flags_dead {
            asm.load32(RAX, Mem::At(RSP, save::FLAGS));
            asm.flags_from_rax();
        }
        for (reg, at) in self.saved(exit) {
            reload(asm, reg, at);
        }
        if self.site.dead & 1 == 0 {
            reload(asm, RAX, save::RAX);
        }
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, RED_ZONE));
        }
    }

    /// Out: rsi = slot, r8 = S if `special`. Spoils rax, rdx.
    fn lookup(&self, asm: &mut Asm<'_>) -> Lookup {
        asm.mov_imm64(RSI, self.latency.stamps);
        let nobody = self.key(asm);
        let elsewhere = asm.unbroken(|asm| {
            asm.alu_store(Alu::Cmp, Mem::Sum(RSI, RAX, 3, 0), RDX, false);
            asm.jcc_later(Cond::NotEqual)
        });
        let found = asm.here();
        self.slot(asm);
        Lookup { nobody, elsewhere, found }
    }

    /// Out: rdx = tag, rax = where to look first; r8 = S if `special`.
    /// Jumps to the returned place if there is no goroutine.
    fn key(&self, asm: &mut Asm<'_>) -> Option<Fix> {
        asm.lea(RDX, Mem::At(RSP, self.skipped()));
        if !self.special() {
            asm.shift(Shift::Right, RDX, 12, true);
            asm.imul_imm(RAX, RDX, PHI, false);
            asm.shift(Shift::Right, RAX, INDEX_SHIFT, false);
            return None;
        }
        let nobody = self.latency.go.map(|offset| {
            asm.load(RAX, Mem::Fs(offset));
            asm.test(RAX, RAX, true);
            let nobody = asm.jcc_later(Cond::Equal);
            asm.alu_load(Alu::Sub, RDX, Mem::At(RAX, 8)); // g.stack.hi
            nobody
        });
        asm.mov(R8, RDX);
        if self.latency.outermost {
            match self.latency.go {
                Some(_) => asm.mov(RDX, RAX),
                None => asm.load(RDX, Mem::Fs(0)), // the psABI's pointer to itself
            }
            asm.shift(Shift::Left, RDX, 16, true);
            asm.alu_imm(Alu::Or, RDX, (self.function >> 9) as i32, true);
        } else {
            asm.not(RDX);
            asm.shift(Shift::Right, RDX, 12, true);
            asm.shift(Shift::Left, RAX, 16, true); // g is a multiple of 8: pages up to 2^19 never reach it
            asm.alu(Alu::Add, RDX, RAX);
        }
        asm.mov(RAX, RDX);
        asm.shift(Shift::Right, RAX, 29, true);
        asm.alu(Alu::Xor, RAX, RDX);
        asm.imul_imm(RAX, RAX, PHI, false);
        asm.shift(Shift::Right, RAX, INDEX_SHIFT, false);
        nobody
    }

    /// In: rsi = tags, rax = block's number, r8 from `key`. Out: rsi = slot.
    fn slot(&self, asm: &mut Asm<'_>) {
        const BLOCKS: i32 = words::STAMP_TAGS_LEN as i32;
        asm.shift(Shift::Left, RAX, words::STAMP_BLOCK.trailing_zeros() as u8, false);
        if self.latency.outermost {
            asm.lea(RSI, Mem::Sum(RSI, RAX, 0, BLOCKS + (self.function & 511) as i32 * 16));
            return;
        }
        if self.special() {
            asm.mov32(RDX, R8);
        } else {
            asm.lea(RDX, Mem::At(RSP, self.skipped()));
        }
        asm.alu_imm(Alu::And, RDX, 0xff8, false);
        asm.alu(Alu::Add, RSI, RAX);
        asm.lea(RSI, Mem::Sum(RSI, RDX, 1, BLOCKS));
    }

    /// Compares the slot's second word with what this call puts there.
    fn compare_owner(&self, asm: &mut Asm<'_>) {
        if self.latency.outermost {
            asm.alu_store(Alu::Cmp, Mem::At(RSI, 8), R8, false);
        } else {
            asm.cmp_mem_imm(Mem::At(RSI, 8), self.function as i32 + 1);
        }
    }

    /// Probes for the tag from the second block on. Found: jumps to `found` with rax = block's number. Falls out
    /// of the end otherwise, and also when `Claim::No` meets a free tag.
    fn probe(&self, asm: &mut Asm<'_>, claim: Claim, found: u64) {
        spill(asm, save::R9, R9);
        spill(asm, save::R10, R10);
        asm.mov32(R9, RAX);
        asm.mov_imm32(R10, words::STAMP_PROBES as u32);
        let again = asm.here();
        asm.load(RAX, Mem::Sum(RSI, R9, 3, 0));
        asm.alu(Alu::Cmp, RAX, RDX);
        let same = asm.jcc_later(Cond::Equal);
        asm.test(RAX, RAX, true);
        let (mine, free) = match claim {
            Claim::Yes => {
                let taken = asm.jcc_later(Cond::NotEqual);
                asm.cmpxchg(Mem::Sum(RSI, R9, 3, 0), RDX);
                let mine = asm.jcc_later(Cond::Equal);
                // A signal handler on this page may have claimed the tag for the same key.
                asm.alu(Alu::Cmp, RAX, RDX);
                let handler = asm.jcc_later(Cond::Equal);
                asm.bind(taken);
                (Some((mine, handler)), None)
            }
            Claim::No => (None, Some(asm.jcc_later(Cond::Equal))),
        };
        asm.alu_imm(Alu::Add, R9, 1, false);
        asm.alu_imm(Alu::And, R9, words::STAMP_BLOCKS as i32 - 1, false);
        asm.alu_imm(Alu::Sub, R10, 1, false);
        asm.jcc(Cond::NotEqual, again);
        if let Some(free) = free {
            asm.bind(free);
        }
        reload(asm, R10, save::R10);
        reload(asm, R9, save::R9);
        let lost = asm.jmp_later();
        asm.bind(same);
        if let Some((mine, handler)) = mine {
            asm.bind(mine);
            asm.bind(handler);
        }
        asm.mov32(RAX, R9);
        reload(asm, R10, save::R10);
        reload(asm, R9, save::R9);
        asm.jmp(found);
        asm.bind(lost);
    }

    fn enter(&self, asm: &mut Asm<'_>, loop_entry: bool) -> Tail {
        self.prologue(asm, false);
        let lookup = self.lookup(asm);
        let occupied = asm.unbroken(|asm| {
            asm.alu_mem_imm(Alu::Cmp, Mem::At(RSI, 8), 0, false);
            asm.jcc_later(Cond::NotEqual)
        });
        let stamp = asm.here();
        clock(asm);
        if self.latency.outermost {
            asm.store(Mem::At(RSI, 8), R8);
        } else {
            asm.store_imm(Mem::At(RSI, 8), self.function as i32 + 1);
        }
        asm.store(Mem::At(RSI, 0), RAX);
        let leave = asm.here();
        self.epilogue(asm, false);
        Tail::Enter { loop_entry, occupied, stamp, lookup, leave }
    }

    fn exit(&self, asm: &mut Asm<'_>, kind: ExitKind) -> Tail {
        self.prologue(asm, true);
        clock(asm);
        asm.mov(RDI, RAX);
        let lookup = self.lookup(asm);
        let other = asm.unbroken(|asm| {
            self.compare_owner(asm);
            asm.jcc_later(Cond::NotEqual)
        });
        let negative = asm.unbroken(|asm| {
            asm.alu_load(Alu::Sub, RDI, Mem::At(RSI, 0));
            asm.jcc_later(Cond::Below)
        });
        let clamped = asm.here();
        asm.store_imm(Mem::At(RSI, 8), 0);
        asm.lea(RSI, Mem::Rip(self.block()));
        let rare = match self.machine.rseq {
            Some(rseq) => Some(self.record_owned(asm, rseq, kind)),
            None => {
                self.record_shared(asm, kind);
                None
            }
        };
        let leave = asm.here();
        self.epilogue(asm, true);
        Tail::Exit { kind, lookup, other, negative, clamped, rare, leave }
    }

    /// Appends what is rare.
    pub(super) fn finish(&self, asm: &mut Asm<'_>, tail: Tail) {
        match tail {
            Tail::Enter { loop_entry, occupied, stamp, lookup, leave } => {
                self.occupied(asm, loop_entry, occupied, stamp, leave);
                self.miss(asm, lookup, Claim::Yes, None, Mem::Rip(self.latency.missed), leave);
            }
            Tail::Exit { kind, lookup, other, negative, clamped, rare, leave } => {
                asm.bind(negative);
                asm.alu_mem_imm(Alu::Add, self.last(at::CLAMPED), 1, true);
                asm.mov_imm32(RDI, 0);
                asm.jmp(clamped);
                asm.bind(other);
                if self.latency.outermost {
                    asm.jcc(Cond::Above, leave); // a deeper call than the one that is timed
                }
                let unpaired = asm.jmp_later();
                self.miss(asm, lookup, Claim::No, Some(unpaired), self.last(at::UNPAIRED), leave);
                if let Some(rare) = rare {
                    self.record_rare(asm, rare, kind);
                }
            }
        }
    }

    /// An entry that finds a stamp in its slot.
    fn occupied(&self, asm: &mut Asm<'_>, loop_entry: bool, from: Fix, stamp: u64, leave: u64) {
        asm.bind(from);
        self.compare_owner(asm);
        if loop_entry {
            asm.jcc(Cond::Equal, leave); // the first stamp stands
        }
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // deeper than the outermost call
            asm.alu_mem_imm(Alu::Add, self.last(at::UNRETURNED), 1, true);
        } else {
            asm.load(RAX, Mem::At(RSI, 8));
            asm.alu_imm(Alu::Cmp, RAX, self.latency.functions as i32, true);
            asm.jcc(Cond::Above, stamp); // not a number that we wrote
            asm.imul_imm(RAX, RAX, self.stride(), true);
            asm.lea(RDX, Mem::Rip(self.latency.area.wrapping_sub(words::STRIDE)));
            asm.alu_mem_imm(Alu::Add, Mem::Sum(RDX, RAX, 0, at::UNRETURNED as i32), 1, true);
        }
        asm.jmp(stamp);
    }

    /// A search that the first look did not end; counted at `lost` if it comes to nothing.
    fn miss(
        &self,
        asm: &mut Asm<'_>,
        lookup: Lookup,
        claim: Claim,
        also: Option<Fix>,
        lost: Mem,
        leave: u64,
    ) {
        asm.bind(lookup.elsewhere);
        self.probe(asm, claim, lookup.found);
        for fix in lookup.nobody.into_iter().chain(also) {
            asm.bind(fix);
        }
        asm.alu_mem_imm(Alu::Add, lost, 1, true);
        asm.jmp(leave);
    }

    /// In: rdi = duration. Out: rax = bucket; spoils rcx, rdx.
    fn bucket(&self, asm: &mut Asm<'_>) {
        match self.latency.buckets {
            Buckets::Log => {
                // With octave e (at least 4), bucket = (e - 4) · 16 + (duration >> (e - 4)).
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
    /// Jumps to the returned place if the duration in rdi is too short to keep; spoils rcx.
    fn filter(&self, asm: &mut Asm<'_>) -> Option<Fix> {
        (self.latency.min_ticks > 0).then(|| {
            asm.mov_imm64(RCX, self.latency.min_ticks);
            asm.unbroken(|asm| {
                asm.alu(Alu::Cmp, RDI, RCX);
                asm.jcc_later(Cond::Below)
            })
        })
    }

    /// One commit: `store` is the committing instruction, with rdx = the line's distance from line 0.
    fn commit(&self, asm: &mut Asm<'_>, rseq: Rseq, store: impl FnOnce(&mut Asm<'_>)) -> Section {
        rseq::section(asm, rseq, RDX, |asm| {
            asm.load32(RDX, Mem::Fs(rseq.offset + CPU_ID));
            asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
            store(asm);
        })
    }

    /// In: rdi = duration, rsi = block on line 0. Everything else is free. The usual case: this CPU's line.
    fn record_owned(&self, asm: &mut Asm<'_>, rseq: Rseq, kind: ExitKind) -> Rare {
        let mut unregistered = None;
        let counted = rseq::section(asm, rseq, RDX, |asm| {
            asm.load32(RDX, Mem::Fs(rseq.offset + CPU_ID));
            // Negative, or a CPU that was never told of.
            unregistered = Some(asm.unbroken(|asm| {
                asm.alu_imm(Alu::Cmp, RDX, self.machine.lines as i32 - 1, false);
                asm.jcc_later(Cond::AboveEq)
            }));
            asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
            asm.alu_mem_imm(Alu::Add, word(kind.word()), 1, false);
        });
        let short = self.filter(asm);
        self.bucket(asm);
        let summed = self.commit(asm, rseq, |asm| asm.alu_store(Alu::Add, word(at::TOTAL), RDI, false));
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
        let sections = [counted, summed, sorted];
        Rare { rseq, sections, unregistered, clear, minimum, after_minimum, maximum, after_maximum }
    }

    /// New extremes and threads without an area. The line may have changed since an extreme was noticed, so the
    /// section looks again.
    fn record_rare(&self, asm: &mut Asm<'_>, rare: Rare, kind: ExitKind) {
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
            self.record_shared(asm, kind);
            asm.jmp(rare.clear);
        }
        rseq::descriptors(asm, rare.rseq, &rare.sections);
        rseq::descriptors(asm, rare.rseq, &extremes);
    }

    /// As `record_owned`, for threads without an area and processes without rseq: `lock add` to some line.
    fn record_shared(&self, asm: &mut Asm<'_>, kind: ExitKind) {
        self.bucket(asm);
        match self.machine.rseq {
            Some(_) => asm.mov_imm32(RDX, self.machine.lines - 1),
            None => rseq::any_line(asm, RDX, self.machine.rdpid, self.machine.lines),
        }
        asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
        asm.alu_mem_imm(Alu::Add, word(kind.word()), 1, true);
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

impl ExitKind {
    const fn word(self) -> u64 {
        match self {
            Self::Return => at::RETURNS,
            Self::Tail => at::TAIL_EXITS,
        }
    }
}

/// A word of the function's block, with rsi = block on line 0 and rdx = distance to the line.
const fn word(at: u64) -> Mem {
    Mem::Sum(RSI, RDX, 0, at as i32)
}
