//! Which registers a record's code saves, and where: on the stack, above its own stack pointer, since memory
//! below a stack pointer may be overwritten.
//!
//! In: what is recorded. Out: code that saves what is used, and loads it again. Invariants: STUB-1, and sp a
//! multiple of 16 throughout, as it was.
//!
//! ```text
//!              most stubs            a stack is recorded        fields decide
//!   sp +   0   x16, x17 = A, B       the same                   the same         <- sp = S - step
//!   sp +  16   x14, x15 = RING, AT   the same                   the same
//!   sp +  32   x12, x13 = TIME, SLOT the same                   the same
//!   sp +  48   x11 = C; the flags    the same                   the same
//!   sp +  64   <- S                  x9, x10 = LIMIT, FRAME     ANSWER (`frame`)
//!   sp +  80                         SAVED_LINK: x30; END       WAITING (`frame`)
//!   sp +  96                         <- S
//!   sp + 144                                                    <- S
//!   step       SHORT = 64            LONG = 96                  frame::FRAME = 144
//! ```
//!
//! END is the end of the stack (`stack`).

use super::asm::{Asm, Reg, SP};
use super::frame;

/// Registers of a stub (`counted` overwrites `A`, `B`, `C` and `AT`). `A`, `B`: anything, and `B` also holds
/// the thread's area. `RING`: the ring. `AT`: its head. `SLOT`: the slot behind that. `TIME`: the time. `C`:
/// anything.
pub(super) const A: Reg = 16;
pub(super) const B: Reg = 17;
pub(super) const RING: Reg = 14;
pub(super) const AT: Reg = 15;
pub(super) const SLOT: Reg = 13;
pub(super) const TIME: Reg = 12;
pub(super) const C: Reg = 11;
const _: () = assert!(A == frame::A && B == frame::B && C == frame::C && AT == frame::KEY);
/// Registers for a recorded stack.
pub(super) const LIMIT: Reg = 9;
pub(super) const FRAME: Reg = 10;
pub(super) const LINK: Reg = 30;

const SHORT: u32 = 64;
const LONG: u32 = 96;
/// Offset from the stack pointer at which x30 is saved.
pub(super) const SAVED_LINK: u32 = 80;
/// Offset of the end of the stack.
pub(super) const END: u32 = 88;

/// All that the code of one record saves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saves {
    /// The record holds a stack.
    stack: bool,
    /// Fields decide about the hit.
    by_fields: bool,
}

impl Saves {
    pub(super) const fn of(stack: bool, by_fields: bool) -> Self {
        Self { stack, by_fields }
    }
    /// By how many bytes the stack pointer is below the program's.
    pub(super) const fn step(self) -> u32 {
        match self {
            Self { stack: true, .. } => LONG,
            Self { by_fields: true, .. } => frame::FRAME.unsigned_abs(),
            _ => SHORT,
        }
    }
    pub(super) fn enter(self, asm: &mut Asm) {
        let step = self.step();
        asm.add_imm(SP, SP, -step.cast_signed());
        asm.store_two(A, B, SP, 0);
        asm.store_two(RING, AT, SP, 16);
        asm.store_two(TIME, SLOT, SP, 32);
        asm.flags(A);
        asm.store_two(C, A, SP, 48);
        if self.stack {
            asm.store_two(LIMIT, FRAME, SP, 64);
            asm.store(LINK, SP, SAVED_LINK);
        }
    }
    pub(super) fn leave(self, asm: &mut Asm) {
        let step = self.step();
        if self.stack {
            asm.load_two(LIMIT, FRAME, SP, 64);
            asm.load_at(LINK, SP, SAVED_LINK);
        }
        asm.load_two(C, A, SP, 48);
        asm.set_flags(A);
        asm.load_two(TIME, SLOT, SP, 32);
        asm.load_two(RING, AT, SP, 16);
        asm.load_two(A, B, SP, 0);
        asm.add_imm(SP, SP, step.cast_signed());
    }
}
