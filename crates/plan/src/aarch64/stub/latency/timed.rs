//! One site of a timed function: what is timed, and which registers its stubs use and save.
//!
//! In: addresses and sizes from the layout. Out: plain values; code that saves what a stub uses, and loads it
//! again (STUB-1).
//!
//! ```text
//!   sp +  0   x16, x17 = A, B         <- sp from `prologue` to `epilogue`: S - FRAME = S - 64
//!   sp + 16   x14, x15 = SLOT, KEY
//!   sp + 32   x12, x13 = TIME, INDEX
//!   sp + 48   x11 = C; the flags
//!   sp + 64   <- S
//!
//!   block of function f on line l = area + (f·lines + l)·STRIDE       l = 0: `block`; lines - 1: `last`
//! ```

use trapline_record::latency as words;
use trapline_record::trampolines::Trampolines;

use super::super::asm::{Asm, Reg, SP, Update};
use super::super::machine::Machine;
use crate::machine::Buckets;

/// What is timed, and where the results are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Latency {
    /// Address of function 0's block on line 0.
    pub area: u64,
    /// Number of functions in the area.
    pub functions: u32,
    /// Address of the stamp memory: tags, then blocks.
    pub stamps: u64,
    /// Size of its stamp cells.
    pub shape: words::Stamps,
    /// Address of the control block's MISSED word.
    pub missed: u64,
    /// Calls shorter than this many ticks are counted as returns, but enter no bucket, total, minimum or
    /// maximum.
    pub min_ticks: u64,
    /// How durations are sorted into histogram buckets.
    pub buckets: Buckets,
    /// Count recursion once, by its outermost call.
    pub outermost: bool,
    /// Where calls get return trampolines, if some do.
    pub trampolines: Option<Trampolines>,
}

impl Latency {
    /// The same memory, with a cell for each call of any depth.
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
    /// The call belongs to the goroutine that x28 names, wherever its stack is, and not to a place on the
    /// stack.
    pub goroutine: bool,
}

/// Registers of a stub. `A`, `B`: anything. `SLOT`: the cell (before that the tags, afterwards the block).
/// `KEY`: the tag. `INDEX`: the block's number, or a bucket. `TIME`: the time. `C`: anything.
pub(super) const A: Reg = 16;
pub(super) const B: Reg = 17;
pub(super) const SLOT: Reg = 14;
pub(super) const KEY: Reg = 15;
pub(super) const INDEX: Reg = 13;
pub(super) const TIME: Reg = 12;
pub(super) const C: Reg = 11;
/// The register of Go's g.
pub(in super::super) const G: Reg = 28;
/// Offset in g of the end of its stack (`stack.hi`).
pub(in super::super) const STACK_END: u32 = 8;
/// Bytes that these registers take on the stack, with the flags.
pub(super) const FRAME: u32 = 64;

impl Timed<'_> {
    pub(super) const fn stride(&self) -> u64 {
        self.machine.lines as u64 * words::STRIDE
    }
    /// The function's block on line 0.
    pub(super) const fn block(&self) -> u64 {
        self.latency.area.wrapping_add(self.function as u64 * self.stride())
    }
    /// Address of a word of the function's block on the last line.
    pub(super) const fn last(&self, word: u64) -> u64 {
        self.block().wrapping_add(self.stride() - words::STRIDE + word)
    }

    pub(super) fn prologue(asm: &mut Asm) {
        asm.add_imm(SP, SP, -FRAME.cast_signed());
        asm.store_two(A, B, SP, 0);
        asm.store_two(SLOT, KEY, SP, 16);
        asm.store_two(TIME, INDEX, SP, 32);
        asm.flags(A);
        asm.store_two(C, A, SP, 48);
    }
    pub(super) fn epilogue(asm: &mut Asm) {
        asm.load_two(C, A, SP, 48);
        asm.set_flags(A);
        asm.load_two(TIME, INDEX, SP, 32);
        asm.load_two(SLOT, KEY, SP, 16);
        asm.load_two(A, B, SP, 0);
        asm.add_imm(SP, SP, FRAME.cast_signed());
    }
    /// `[B] = [B] + 1`, by an atomic access. Uses `A`, and without FEAT_LSE `C` and `KEY`.
    pub(super) fn add_one(&self, asm: &mut Asm) {
        asm.one(A);
        asm.update(self.machine.lse, Update::Add, A, B, [C, KEY]);
    }

    /// `to` = what this call puts into its cell's second word. Uses `KEY`.
    ///
    /// ```text
    ///   owner = function + 1                 a cell for each call
    ///   owner = S                            only outermost calls
    ///   owner = S - [g + STACK_END]          the same, of goroutines
    /// ```
    pub(super) fn owner(&self, asm: &mut Asm, to: Reg) {
        if !self.latency.outermost {
            return asm.number(to, self.function + 1);
        }
        asm.add_imm(to, SP, FRAME.cast_signed());
        if self.goroutine {
            // The stack moves, and its end with it. Deeper places have smaller numbers here, too: none is
            // above the end.
            asm.load_at(KEY, G, STACK_END);
            asm.sub(to, to, KEY);
        }
    }
}
