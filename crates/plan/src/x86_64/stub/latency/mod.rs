//! Time from entry to return: a stamp at the entry, a histogram at every exit.
//!
//! A stub saves what it uses below the stack pointer, which kernel and language runtimes leave alone (the
//! psABI red zone). It finds the stamp cell of (function, stack pointer at entry):
//!
//! ```text
//!   S        stack pointer at the function's entry, and again when its `ret` or tail jump is about to run
//!            (128 bytes of the function's own red zone, where it may be live)     <- rsp in the stub
//!   S-8 …    rax, flags, rdx, rsi, rcx, rdi; r8; r9, r10 on rare paths
//! ```
//!
//! Stamp cells are private memory, a block of 512 to each stack page; see `record::latency`. The clock is
//! read as the last thing before the stamp and as the first thing at an exit. What an exit finds is written
//! word by word, each by an rseq commit of its own; rare words always by `lock add` on the last line.
//! Everything is in line: calls into shared routines would cost 3 ns of the 25 (COST-1). What is rare lies
//! behind the displaced code.
//! With `outermost` a cell belongs to (thread, function) and holds {tsc, S of the outermost call}. Deeper
//! calls are ignored, and a call at a shallower place proves that the remembered one is gone. In Go, the
//! goroutine takes the place of the thread, and S is the distance from the stack's end, because stacks move.
//! A thread without a goroutine is treated as elsewhere.

mod armed;
mod mark;
mod record;
mod stamp_cell;

use trapline_record::latency::{self as words, at};
use trapline_record::trampolines::Trampolines;

use super::asm::{Alu, Asm, Cond, Fix, Mem, R8, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::{Kind, Liveness, Machine, Pending};
use armed::Armed;
pub use armed::{latency_arm, leading_trampoline_code, return_arm, trampoline_code, trampoline_code_len};
pub(super) use mark::{Mark, MarkLookup};
use record::Rare;
pub(super) use stamp_cell::{Claim, Lookup};

/// How durations are sorted into histogram buckets.
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
        /// At most `record::hist::BUCKETS - 2`; a larger number is cut to that.
        count: u32,
    },
}

/// What is timed, and where the results are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Address of function 0's block on line 0; it may lie anywhere.
    pub area: u64,
    /// Number of functions in the area.
    pub functions: u32,
    /// Address of the stamp memory: tags, then blocks. It may lie anywhere.
    pub stamps: u64,
    /// Size of its stamp cells.
    pub shape: words::Stamps,
    /// Address of the control block's MISSED word, within ±2 GiB of the code.
    pub missed: u64,
    /// Calls shorter than this many ticks are counted as returns, but enter no bucket, total, minimum or
    /// maximum.
    pub min_ticks: u64,
    /// How durations are sorted into buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Offset of the goroutine pointer from the thread pointer, in a Go program.
    pub go: Option<i32>,
    /// Where calls get return trampolines, if some do.
    pub trampolines: Option<Trampolines>,
}

impl Latency {
    /// The same memory, with a cell for each call of any depth, whichever thread runs it.
    #[must_use]
    pub const fn for_marks(self) -> Self {
        Self { go: None, ..self.for_deferred() }
    }
    /// The same, where cells hold what entries keep for their returns. In a Go program a goroutine's cells
    /// are its own, wherever its stack is.
    #[must_use]
    pub const fn for_deferred(self) -> Self {
        Self { outermost: false, ..self }
    }
}

/// How a call leaves its function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitKind {
    /// By `ret`.
    Return,
    /// By a jump to another function, or by running on into one.
    Tail,
}

/// Offsets of the saves from rsp in the stub.
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
    pub(super) const REAL: i32 = -80;
}
const RED_ZONE: i32 = 128;

/// One site of a timed function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// What is timed, and where the results are kept.
    pub latency: &'a Latency,
    /// The function's number, below `latency.functions`.
    pub function: u32,
    /// What is dead at the site.
    pub site: Liveness,
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
    Armed(Armed),
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

/// Appends the stub of an entry: the part before the displaced code. With `loop_entry` the entry is also a
/// branch target, so the first stamp of (function, S) is kept until the exit.
pub fn latency_enter(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, loop_entry: bool) -> Pending<'static> {
    let mut asm = Asm::new(out, at);
    let tail = timed.enter(&mut asm, loop_entry);
    Pending::new(&asm, Kind::Latency(*timed.machine, *timed.latency, timed.function, timed.site, tail))
}

/// Appends the stub of an exit: the part before the `ret` or jump that leaves, right before which it has to
/// lie.
pub fn latency_exit(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, kind: ExitKind) -> Pending<'static> {
    let mut asm = Asm::new(out, at);
    let tail = timed.exit(&mut asm, kind);
    Pending::new(&asm, Kind::Latency(*timed.machine, *timed.latency, timed.function, timed.site, tail))
}

/// Appends the whole stub of a conditional jump out of the function. `condition` is the low nibble of its
/// opcode, `target` is where it leads. The code that follows runs if the jump is not taken.
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

/// Adds one to a word that many threads write. Spoils rax.
fn add_one(asm: &mut Asm<'_>, word: u64) {
    asm.mov_imm64(RAX, word);
    asm.alu_mem_imm(Alu::Add, Mem::At(RAX, 0), 1, true);
}

/// `rax = rdtsc`, spoiling rdx.
fn clock(asm: &mut Asm<'_>) {
    asm.rdtsc();
    asm.shift(Shift::Left, RDX, 32, true);
    asm.alu(Alu::Or, RAX, RDX);
}

impl Timed<'_> {
    const fn stride(&self) -> i32 {
        (self.machine.lines as u64 * words::STRIDE) as i32
    }
    /// The function's block on line 0.
    const fn block(&self) -> u64 {
        self.latency.area.wrapping_add(self.function as u64 * self.machine.lines as u64 * words::STRIDE)
    }
    /// Address of a word of the function's block on the last line.
    const fn last(&self, word: u64) -> u64 {
        self.block().wrapping_add((self.machine.lines as u64 - 1) * words::STRIDE + word)
    }
    /// Whether S must be kept in a register (r8), rather than computed from rsp again.
    pub(super) const fn special(&self) -> bool {
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
        asm.mov_imm64(RSI, self.block());
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

    /// Appends the rare paths.
    pub(super) fn finish(&self, asm: &mut Asm<'_>, tail: Tail) {
        match tail {
            Tail::Enter { loop_entry, occupied, stamp, lookup, leave } => {
                self.occupied(asm, loop_entry, occupied, stamp, leave);
                self.miss(asm, lookup, Claim::Yes, None, self.latency.missed, leave);
            }
            Tail::Armed(armed) => self.finish_armed(asm, armed),
            Tail::Exit { kind, lookup, other, negative, clamped, rare, leave } => {
                asm.bind(negative);
                add_one(asm, self.last(at::CLAMPED));
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

    /// The path of an entry that finds a stamp in its cell.
    fn occupied(&self, asm: &mut Asm<'_>, loop_entry: bool, from: Fix, stamp: u64, leave: u64) {
        asm.bind(from);
        self.compare_owner(asm);
        if loop_entry {
            asm.jcc(Cond::Equal, leave); // the first stamp is kept
        }
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // deeper than the outermost call
            add_one(asm, self.last(at::UNRETURNED));
        } else {
            asm.load(RAX, Mem::At(RSI, 8));
            asm.alu_imm(Alu::Cmp, RAX, self.latency.functions as i32, true);
            asm.jcc(Cond::Above, stamp); // not a number that stubs write
            asm.imul_imm(RAX, RAX, self.stride(), true);
            asm.mov_imm64(RDX, self.latency.area.wrapping_sub(words::STRIDE));
            asm.alu_mem_imm(Alu::Add, Mem::Sum(RDX, RAX, 0, at::UNRETURNED as i32), 1, true);
        }
        asm.jmp(stamp);
    }
}
