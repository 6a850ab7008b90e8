//! One site of a timed function: what is timed, and which registers its stubs save where.
//!
//! In: addresses and sizes from the layout, what is dead. Out: plain values; code that saves what a stub uses,
//! and loads it again (STUB-1).
//!
//! What is saved lies below the stack pointer, which kernel and language runtimes leave alone (the psABI red
//! zone):
//!
//! ```text
//!   rsp - 80   save::REAL    trampolines: where the code behind them jumps to
//!   rsp - 72   save::R10     r10, while a cell is searched for
//!   rsp - 64   save::R9      r9, the same;  armed, by a tail call: r8
//!   rsp - 56   save::R8      r8, if S is kept there (`special`);  trampolines: while a free one is searched for
//!   rsp - 48   save::RDI     rdi, at exits and where a call is armed
//!   rsp - 40   save::RCX     rcx, the same
//!   rsp - 32   save::RSI     rsi
//!   rsp - 24   save::RDX     rdx
//!   rsp - 16   save::FLAGS   flags, 4 bytes
//!   rsp - 8    save::RAX     rax
//!   rsp        = S - RED_ZONE if the function's own red zone may be live, else S
//!   S          stack pointer at the function's entry, and again when its `ret` or tail jump is about to run
//! ```

use trapline_record::latency as words;
use trapline_record::trampolines::Trampolines;

use super::super::asm::{Alu, Asm, Mem, R8, RAX, RCX, RDI, RDX, RSI, RSP, Reg, Shift};
use super::super::machine::{Liveness, Machine};
use crate::machine::Buckets;

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

/// Offsets of the saves from rsp in the stub; the picture above.
pub(super) mod save {
    pub(in super::super) const RAX: i32 = -8;
    pub(in super::super) const FLAGS: i32 = -16;
    pub(in super::super) const RDX: i32 = -24;
    pub(in super::super) const RSI: i32 = -32;
    pub(in super::super) const RCX: i32 = -40;
    pub(in super::super) const RDI: i32 = -48;
    pub(in super::super) const R8: i32 = -56;
    pub(in super::super) const R9: i32 = -64;
    pub(in super::super) const R10: i32 = -72;
    pub(in super::super) const REAL: i32 = -80;
}
const RED_ZONE: i32 = 128;

pub(super) fn spill(asm: &mut Asm<'_>, at: i32, reg: Reg) {
    asm.store(Mem::At(RSP, at), reg);
}

pub(super) fn reload(asm: &mut Asm<'_>, reg: Reg, at: i32) {
    asm.load(reg, Mem::At(RSP, at));
}

/// Adds one to a word that many threads write: rax = word, `lock [rax] += 1`.
pub(super) fn add_one(asm: &mut Asm<'_>, word: u64) {
    asm.mov_imm64(RAX, word);
    asm.alu_mem_imm(Alu::Add, Mem::At(RAX, 0), 1, true);
}

/// rax = the time-stamp counter. Uses rdx and flags.
pub(super) fn clock(asm: &mut Asm<'_>) {
    asm.rdtsc();
    asm.shift(Shift::Left, RDX, 32, true);
    asm.alu(Alu::Or, RAX, RDX);
}

impl Timed<'_> {
    pub(super) const fn stride(&self) -> i32 {
        (self.machine.lines as u64 * words::STRIDE) as i32
    }
    /// The function's block on line 0.
    pub(super) const fn block(&self) -> u64 {
        self.latency.area.wrapping_add(self.function as u64 * self.machine.lines as u64 * words::STRIDE)
    }
    /// Address of a word of the function's block on the last line.
    pub(super) const fn last(&self, word: u64) -> u64 {
        self.block().wrapping_add((self.machine.lines as u64 - 1) * words::STRIDE + word)
    }
    /// Whether S must be kept in a register (r8), rather than computed from rsp again.
    pub(in super::super) const fn special(&self) -> bool {
        self.latency.outermost || self.latency.go.is_some()
    }
    /// Bytes from the stub's stack pointer to S.
    pub(super) const fn skipped(&self) -> i32 {
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
    pub(super) fn prologue(&self, asm: &mut Asm<'_>, exit: bool) {
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
    pub(super) fn epilogue(&self, asm: &mut Asm<'_>, exit: bool) {
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
}
