//! Time from entry to return: a stamp at the entry, a histogram at every exit.
//!
//! A site's stub is a few bytes: save rcx, load the function's number, call a routine, restore. The routines stand
//! once in each module's code. They save what they use below their stack pointer, which kernel and language runtimes
//! leave alone (the psABI red zone; a routine calls nothing), and find the slot of (function, stack pointer at entry):
//!
//! ```text
//!   S        stack pointer at the function's entry, and again when its `ret` or tail jump is about to run
//!   S-8      rcx, pushed by the site's stub (128 further down where the red zone may be live)
//!   S-16     the routine's return address                              <- rsp in the routine
//!   S-24 …   rax, rdx, rsi, rdi, flags; r8, r9 on slow paths
//! ```
//!
//! Slots are private memory, a block of 512 to each stack page; see `record::latency`. The clock is read as the last
//! thing before the stamp and as the first thing at an exit. What an exit finds is written word by word, each by an
//! rseq commit of its own; rare words always by `lock add` on the last line.
//! With `outermost` a slot belongs to (thread, function) and holds {tsc, S of the outermost call}: deeper calls are
//! ignored, and a call at a shallower place proves that the remembered one is gone. In Go the thread is the goroutine
//! and S its distance from the stack's end, because stacks move.

use trapline_record::hist;
use trapline_record::latency::{self as words, at};

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, R9, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::rseq::{self, CPU_ID, PHI, Section};
use super::{Machine, Rseq, Site};

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

/// Addresses of a module's routines. Index 1 of each is for sites whose red zone may be live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Routines {
    enter: [u64; 2],
    enter_loop: [u64; 2],
    exit_return: [u64; 2],
    exit_tail: [u64; 2],
}

/// Offset of the stub's saves from the routine's stack pointer.
mod save {
    pub(super) const RAX: i32 = -8;
    pub(super) const RDX: i32 = -16;
    pub(super) const RSI: i32 = -24;
    pub(super) const RDI: i32 = -32;
    pub(super) const FLAGS: i32 = -40;
    pub(super) const R8: i32 = -48;
    pub(super) const R9: i32 = -56;
    pub(super) const CLOCK: i32 = -64;
}
const RED_ZONE: i32 = 128;
/// From the routine's stack pointer to S.
const TO_ENTRY: i32 = 16;

/// Appends the stub of an entry. What follows is the displaced code and a jump back.
pub fn latency_enter(
    out: &mut Vec<u8>,
    at: u64,
    routines: &Routines,
    function: u32,
    loop_entry: bool,
    site: &Site,
) {
    let heads = if loop_entry { routines.enter_loop } else { routines.enter };
    call(&mut Asm::new(out, at), heads, function, site);
}

/// Appends the stub of an exit, to stand right before the `ret` or jump that leaves.
pub fn latency_exit(
    out: &mut Vec<u8>,
    at: u64,
    routines: &Routines,
    function: u32,
    kind: ExitKind,
    site: &Site,
) {
    call(&mut Asm::new(out, at), routines.exits(kind), function, site);
}

/// Appends the stub of a conditional jump out of the function: `condition` is the low nibble of its opcode, `target`
/// where it leads. What follows runs if it is not taken.
pub fn latency_exit_branch(
    out: &mut Vec<u8>,
    at: u64,
    routines: &Routines,
    function: u32,
    (condition, target): (u8, u64),
    site: &Site,
) {
    let mut asm = Asm::new(out, at);
    let stay = asm.jcc_raw_later(condition ^ 1);
    call(&mut asm, routines.exit_tail, function, site);
    asm.jmp(target);
    asm.bind(stay);
}

impl Routines {
    const fn exits(&self, kind: ExitKind) -> [u64; 2] {
        match kind {
            ExitKind::Return => self.exit_return,
            ExitKind::Tail => self.exit_tail,
        }
    }
}

fn call(asm: &mut Asm<'_>, heads: [u64; 2], function: u32, site: &Site) {
    if site.red_zone_live {
        asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
    }
    asm.push(RCX);
    asm.mov_imm32(RCX, function + 1);
    asm.call(heads[usize::from(site.red_zone_live)]);
    asm.pop(RCX);
    if site.red_zone_live {
        asm.lea(RSP, Mem::At(RSP, RED_ZONE));
    }
}

/// Appends the routines, to lie at `at`. All sites of the module call them.
pub fn latency_routines(out: &mut Vec<u8>, at: u64, machine: &Machine, latency: &Latency) -> Routines {
    let mut asm = Asm::new(out, at);
    let mut emit = Emit { machine, latency, sections: Vec::new() };
    let routines = Routines {
        enter: emit.enter(&mut asm, false),
        enter_loop: emit.enter(&mut asm, true),
        exit_return: emit.exit(&mut asm, at::RETURNS),
        exit_tail: emit.exit(&mut asm, at::TAIL_EXITS),
    };
    if let Some(rseq) = machine.rseq {
        rseq::descriptors(&mut asm, rseq, &emit.sections);
    }
    asm.align(16);
    routines
}

struct Emit<'a> {
    machine: &'a Machine,
    latency: &'a Latency,
    sections: Vec<Section>,
}

fn spill(asm: &mut Asm<'_>, at: i32, reg: Reg) {
    asm.store(Mem::At(RSP, at), reg);
}
fn reload(asm: &mut Asm<'_>, reg: Reg, at: i32) {
    asm.load(reg, Mem::At(RSP, at));
}

/// Saves rax, rdx, flags.
fn prologue(asm: &mut Asm<'_>) {
    spill(asm, save::RAX, RAX);
    asm.flags_to_rax();
    spill(asm, save::RDX, RDX);
    spill(asm, save::RDI, RDI);
    spill(asm, save::RSI, RSI);
    asm.store32(Mem::At(RSP, save::FLAGS), RAX);
}

fn epilogue(asm: &mut Asm<'_>) {
    asm.load32(RAX, Mem::At(RSP, save::FLAGS));
    reload(asm, RSI, save::RSI);
    reload(asm, RDI, save::RDI);
    reload(asm, RDX, save::RDX);
    asm.flags_from_rax();
    reload(asm, RAX, save::RAX);
    asm.ret();
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

impl Emit<'_> {
    const fn stride(&self) -> i32 {
        (self.machine.lines as u64 * words::STRIDE) as i32
    }

    /// In: rcx = function + 1, rdi = S. Out: rdx = tag, rax = where to look first, rdi = what `slot` needs.
    /// Jumps to the returned place if there is no goroutine.
    fn key(&self, asm: &mut Asm<'_>) -> Option<Fix> {
        let nobody = self.latency.go.map(|offset| {
            asm.load(RAX, Mem::Fs(offset));
            asm.test(RAX, RAX, true);
            let nobody = asm.jcc_later(Cond::Equal);
            asm.alu_load(Alu::Sub, RDI, Mem::At(RAX, 8)); // g.stack.hi
            nobody
        });
        if self.latency.outermost {
            match self.latency.go {
                Some(_) => asm.mov(RDX, RAX),
                None => asm.load(RDX, Mem::Fs(0)),
            }
            asm.mov32(RAX, RCX);
            asm.shift(Shift::Right, RAX, 9, false);
            asm.shift(Shift::Left, RDX, 16, true);
            asm.alu(Alu::Or, RDX, RAX);
        } else if self.latency.go.is_some() {
            asm.mov(RDX, RDI);
            asm.not(RDX);
            asm.shift(Shift::Right, RDX, 12, true);
            asm.shift(Shift::Left, RAX, 16, true); // g is a multiple of 8: pages up to 2^19 never reach it
            asm.alu(Alu::Add, RDX, RAX);
        } else {
            asm.mov(RDX, RDI);
            asm.shift(Shift::Right, RDX, 12, true);
        }
        if self.latency.outermost || self.latency.go.is_some() {
            asm.mov(RAX, RDX);
            asm.shift(Shift::Right, RAX, 29, true);
            asm.alu(Alu::Xor, RAX, RDX);
            asm.imul_imm(RAX, RAX, PHI, false);
        } else {
            asm.imul_imm(RAX, RDX, PHI, false);
        }
        asm.shift(Shift::Right, RAX, 32 - words::STAMP_BLOCKS.trailing_zeros() as u8, false);
        nobody
    }

    /// In: rsi = tags, rax = block's number, rdi from `key`, rcx = function + 1. Out: rsi = slot.
    fn slot(&self, asm: &mut Asm<'_>) {
        asm.shift(Shift::Left, RAX, words::STAMP_BLOCK.trailing_zeros() as u8, false);
        asm.alu(Alu::Add, RSI, RAX);
        if self.latency.outermost {
            asm.mov32(RAX, RCX);
            asm.alu_imm(Alu::And, RAX, 511, false);
            asm.shift(Shift::Left, RAX, 4, false);
            asm.lea(RSI, Mem::Sum(RSI, RAX, 0, words::STAMP_TAGS_LEN as i32));
        } else {
            asm.alu_imm(Alu::And, RDI, 0xff8, false);
            asm.lea(RSI, Mem::Sum(RSI, RDI, 1, words::STAMP_TAGS_LEN as i32));
        }
    }

    /// What the slot's second word holds for this call.
    const fn owner(&self) -> Reg {
        if self.latency.outermost { RDI } else { RCX }
    }

    /// Two heads that leave S in rdi and flow together.
    fn heads(asm: &mut Asm<'_>, prologue: impl Fn(&mut Asm<'_>)) -> [u64; 2] {
        asm.align(16);
        let far = asm.here();
        prologue(asm);
        asm.lea(RDI, Mem::At(RSP, TO_ENTRY + RED_ZONE));
        let join = asm.jmp_later();
        asm.align(32);
        let near = asm.here();
        prologue(asm);
        asm.lea(RDI, Mem::At(RSP, TO_ENTRY));
        asm.bind(join);
        [near, far]
    }

    /// Probes for the tag from the second block on. Found: jumps to `found` with rax = block's number. Falls out
    /// of the end otherwise, and also when `Claim::No` meets a free tag.
    fn probe(asm: &mut Asm<'_>, claim: Claim, found: u64) {
        spill(asm, save::R8, R8);
        spill(asm, save::R9, R9);
        asm.mov32(R8, RAX);
        asm.mov_imm32(R9, words::STAMP_PROBES as u32);
        let again = asm.here();
        asm.load(RAX, Mem::Sum(RSI, R8, 3, 0));
        asm.alu(Alu::Cmp, RAX, RDX);
        let same = asm.jcc_later(Cond::Equal);
        asm.test(RAX, RAX, true);
        let (mine, free) = match claim {
            Claim::Yes => {
                let taken = asm.jcc_later(Cond::NotEqual);
                asm.cmpxchg(Mem::Sum(RSI, R8, 3, 0), RDX);
                let mine = asm.jcc_later(Cond::Equal);
                // A signal handler on this page may have claimed the tag for the same key.
                asm.alu(Alu::Cmp, RAX, RDX);
                let handler = asm.jcc_later(Cond::Equal);
                asm.bind(taken);
                (Some((mine, handler)), None)
            }
            Claim::No => (None, Some(asm.jcc_later(Cond::Equal))),
        };
        asm.alu_imm(Alu::Add, R8, 1, false);
        asm.alu_imm(Alu::And, R8, words::STAMP_BLOCKS as i32 - 1, false);
        asm.alu_imm(Alu::Sub, R9, 1, false);
        asm.jcc(Cond::NotEqual, again);
        if let Some(free) = free {
            asm.bind(free);
        }
        reload(asm, R9, save::R9);
        reload(asm, R8, save::R8);
        let lost = asm.jmp_later();
        asm.bind(same);
        if let Some((mine, handler)) = mine {
            asm.bind(mine);
            asm.bind(handler);
        }
        asm.mov32(RAX, R8);
        reload(asm, R9, save::R9);
        reload(asm, R8, save::R8);
        asm.jmp(found);
        asm.bind(lost);
    }

    /// `lock add` 1 to `word` of function `rax - 1` on the last line; spoils rdx. Rare paths only.
    fn note(&self, asm: &mut Asm<'_>, word: u64) {
        asm.imul_imm(RAX, RAX, self.stride(), true);
        asm.lea(RDX, Mem::Rip(self.latency.area.wrapping_sub(words::STRIDE)));
        asm.alu_mem_imm(Alu::Add, Mem::Sum(RDX, RAX, 0, word as i32), 1, true);
    }

    fn enter(&mut self, asm: &mut Asm<'_>, loop_entry: bool) -> [u64; 2] {
        let heads = Self::heads(asm, prologue);
        let nobody = self.key(asm);
        asm.mov_imm64(RSI, self.latency.stamps);
        asm.alu_store(Alu::Cmp, Mem::Sum(RSI, RAX, 3, 0), RDX, false);
        let elsewhere = asm.jcc_later(Cond::NotEqual);
        let found = asm.here();
        self.slot(asm);
        asm.alu_mem_imm(Alu::Cmp, Mem::At(RSI, 8), 0, false);
        let occupied = asm.jcc_later(Cond::NotEqual);
        let stamp = asm.here();
        clock(asm);
        asm.store(Mem::At(RSI, 8), self.owner());
        asm.store(Mem::At(RSI, 0), RAX);
        let leave = asm.here();
        epilogue(asm);

        asm.bind(occupied);
        if loop_entry || self.latency.outermost {
            asm.alu_store(Alu::Cmp, Mem::At(RSI, 8), self.owner(), false);
        }
        if loop_entry {
            asm.jcc(Cond::Equal, leave); // the first stamp stands
        }
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // deeper than the outermost call
            asm.mov32(RAX, RCX);
        } else {
            asm.load(RAX, Mem::At(RSI, 8));
            asm.alu_imm(Alu::Cmp, RAX, self.latency.functions as i32, true);
            asm.jcc(Cond::Above, stamp); // not a number that we wrote
        }
        self.note(asm, at::UNRETURNED);
        asm.jmp(stamp);

        asm.bind(elsewhere);
        Self::probe(asm, Claim::Yes, found);
        if let Some(nobody) = nobody {
            asm.bind(nobody);
        }
        asm.alu_mem_imm(Alu::Add, Mem::Rip(self.latency.missed), 1, true);
        asm.jmp(leave);
        heads
    }

    fn exit(&mut self, asm: &mut Asm<'_>, kind: u64) -> [u64; 2] {
        let heads = Self::heads(asm, |asm| {
            prologue(asm);
            clock(asm);
            spill(asm, save::CLOCK, RAX);
        });
        let nobody = self.key(asm);
        asm.mov_imm64(RSI, self.latency.stamps);
        asm.alu_store(Alu::Cmp, Mem::Sum(RSI, RAX, 3, 0), RDX, false);
        let elsewhere = asm.jcc_later(Cond::NotEqual);
        let found = asm.here();
        self.slot(asm);
        asm.alu_store(Alu::Cmp, Mem::At(RSI, 8), self.owner(), false);
        let other = asm.jcc_later(Cond::NotEqual);
        reload(asm, RDI, save::CLOCK);
        asm.alu_load(Alu::Sub, RDI, Mem::At(RSI, 0));
        let negative = asm.jcc_later(Cond::Below);
        let clamped = asm.here();
        asm.store_imm(Mem::At(RSI, 8), 0);
        self.block(asm);
        let rare = match self.machine.rseq {
            Some(rseq) => Some(self.record_owned(asm, rseq, kind)),
            None => {
                self.record_shared(asm, kind);
                None
            }
        };
        let leave = asm.here();
        epilogue(asm);

        if let Some(rare) = rare {
            self.record_rare(asm, rare);
            asm.bind(rare.unregistered);
            self.record_shared(asm, kind);
            asm.jmp(leave);
        }
        asm.bind(negative);
        asm.mov(RAX, RCX);
        self.note(asm, at::CLAMPED);
        asm.mov_imm32(RDI, 0);
        asm.jmp(clamped);
        asm.bind(other);
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // a deeper call than the one that is timed
        }
        let unpaired = asm.jmp_later();
        asm.bind(elsewhere);
        Self::probe(asm, Claim::No, found);
        if let Some(nobody) = nobody {
            asm.bind(nobody);
        }
        asm.bind(unpaired);
        asm.mov(RAX, RCX);
        self.note(asm, at::UNPAIRED);
        asm.jmp(leave);
        heads
    }

    /// In: rcx = function + 1. Out: rsi = the function's block on line 0; rcx is free.
    fn block(&self, asm: &mut Asm<'_>) {
        asm.imul_imm(RCX, RCX, self.stride(), true);
        asm.lea(RSI, Mem::Rip(self.latency.area.wrapping_sub(self.machine.lines as u64 * words::STRIDE)));
        asm.alu(Alu::Add, RSI, RCX);
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
        asm.alu_imm(Alu::Cmp, RAX, last as i32, true);
        let fits = asm.jcc_later(Cond::BelowEq);
        asm.mov_imm32(RAX, last);
        asm.bind(fits);
    }
    /// Jumps to the returned place if the duration in rdi is too short to keep; spoils rcx.
    fn filter(&self, asm: &mut Asm<'_>) -> Option<Fix> {
        (self.latency.min_ticks > 0).then(|| {
            asm.mov_imm64(RCX, self.latency.min_ticks);
            asm.alu(Alu::Cmp, RDI, RCX);
            asm.jcc_later(Cond::Below)
        })
    }

    /// One commit: `store` is the committing instruction, with rdx = the line's distance from line 0.
    fn commit(&mut self, asm: &mut Asm<'_>, rseq: Rseq, store: impl FnOnce(&mut Asm<'_>)) {
        self.sections.push(rseq::section(asm, rseq, RDX, |asm| {
            asm.load32(RDX, Mem::Fs(rseq.offset + CPU_ID));
            asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
            store(asm);
        }));
    }

    /// In: rdi = duration, rsi = block on line 0. Everything else is free. The usual case: this CPU's line.
    fn record_owned(&mut self, asm: &mut Asm<'_>, rseq: Rseq, kind: u64) -> Rare {
        asm.load32(RDX, Mem::Fs(rseq.offset + CPU_ID));
        asm.alu_imm(Alu::Cmp, RDX, self.machine.lines as i32 - 1, false);
        let unregistered = asm.jcc_later(Cond::AboveEq); // negative, or a CPU that was never told of
        self.commit(asm, rseq, |asm| asm.alu_mem_imm(Alu::Add, word(kind), 1, false));
        let short = self.filter(asm);
        self.bucket(asm);
        asm.lea(RAX, Mem::Sum(RSI, RAX, 3, at::BUCKETS as i32));
        self.commit(asm, rseq, |asm| asm.alu_mem_imm(Alu::Add, Mem::Sum(RAX, RDX, 0, 0), 1, false));
        self.commit(asm, rseq, |asm| asm.alu_store(Alu::Add, word(at::TOTAL), RDI, false));
        asm.mov(RAX, RDI);
        asm.not(RAX);
        asm.alu_load(Alu::Cmp, RAX, word(at::MIN_NOT));
        let minimum = asm.jcc_later(Cond::Above);
        let after_minimum = asm.here();
        asm.alu_load(Alu::Cmp, RDI, word(at::MAX));
        let maximum = asm.jcc_later(Cond::Above);
        let after_maximum = asm.here();
        if let Some(short) = short {
            asm.bind(short);
        }
        rseq::clear(asm, rseq);
        Rare { rseq, unregistered, minimum, after_minimum, maximum, after_maximum }
    }

    /// New extremes, out of the usual path. The line may have changed since they were noticed, so look again.
    fn record_rare(&mut self, asm: &mut Asm<'_>, rare: Rare) {
        for (from, back, at, value) in [
            (rare.minimum, rare.after_minimum, at::MIN_NOT, RAX),
            (rare.maximum, rare.after_maximum, at::MAX, RDI),
        ] {
            asm.bind(from);
            self.commit(asm, rare.rseq, |asm| {
                asm.alu_load(Alu::Cmp, value, word(at));
                let stays = asm.jcc_later(Cond::BelowEq);
                asm.store(word(at), value);
                asm.bind(stays);
            });
            asm.jmp(back);
        }
    }

    /// As `record_owned`, for threads without an area and processes without rseq: `lock add` to some line.
    fn record_shared(&self, asm: &mut Asm<'_>, kind: u64) {
        self.bucket(asm);
        match self.machine.rseq {
            Some(_) => asm.mov_imm32(RDX, self.machine.lines - 1),
            None => rseq::any_line(asm, RDX, self.machine.rdpid, self.machine.lines),
        }
        asm.imul_imm(RDX, RDX, words::STRIDE as i32, true);
        asm.alu_mem_imm(Alu::Add, word(kind), 1, true);
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

/// A word of the function's block, with rsi = block on line 0 and rdx = distance to the line.
const fn word(at: u64) -> Mem {
    Mem::Sum(RSI, RDX, 0, at as i32)
}

/// Jumps out of `record_owned` and the places to come back to.
#[derive(Clone, Copy)]
struct Rare {
    rseq: Rseq,
    unregistered: Fix,
    minimum: Fix,
    after_minimum: u64,
    maximum: Fix,
    after_maximum: u64,
}
