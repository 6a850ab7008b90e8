//! Which registers a timed stub uses, and where it saves them.
//!
//! In: nothing: all such stubs save the same. Out: code that saves what a stub uses, and loads it again.
//! Invariant: STUB-1.
//!
//! ```text
//!   sp +  0   x16, x17 = A, B         <- sp from `enter` to `leave`: S - FRAME = S - 64
//!   sp + 16   x14, x15 = CELL, KEY
//!   sp + 32   x12, x13 = TIME, INDEX
//!   sp + 48   x11 = C; the flags
//!   sp + 64   <- S
//! ```

use super::super::asm::{Asm, Reg, SP};

/// Registers of a stub. `A`, `B`: anything. `CELL`: the cell (before that the tags, afterwards the block).
/// `KEY`: the tag. `INDEX`: the block's number, or a bucket. `TIME`: the time. `C`: anything.
pub(super) const A: Reg = 16;
pub(super) const B: Reg = 17;
pub(super) const CELL: Reg = 14;
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

/// All that a timed stub saves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saves;

impl Saves {
    pub(super) fn enter(asm: &mut Asm) {
        asm.add_imm(SP, SP, -FRAME.cast_signed());
        asm.store_two(A, B, SP, 0);
        asm.store_two(CELL, KEY, SP, 16);
        asm.store_two(TIME, INDEX, SP, 32);
        asm.flags(A);
        asm.store_two(C, A, SP, 48);
    }
    pub(super) fn leave(asm: &mut Asm) {
        asm.load_two(C, A, SP, 48);
        asm.set_flags(A);
        asm.load_two(TIME, INDEX, SP, 32);
        asm.load_two(CELL, KEY, SP, 16);
        asm.load_two(A, B, SP, 0);
        asm.add_imm(SP, SP, FRAME.cast_signed());
    }
}
