//! The frame of stubs that compute: where they save the program's registers, and where their own values wait.
//!
//! In: nothing. Out: code that makes room on the stack and saves there everything that such a stub may
//! overwrite, and code that puts it back (SAFE-2). Argument registers, and x0 at a return, are never written.
//! So conditions read them as the program left them. (`threads::ask` writes x0 and x8, and puts them back.)
//!
//! ```text
//!   sp +   0   x16, x17 = A, B             <- sp between `enter` and `leave`: S - FRAME = S - 144
//!   sp +  16   x14, x15 = D, KEY
//!   sp +  32   x12, x13 = VALUE, INDEX
//!   sp +  48   x11 = C; the flags
//!   sp +  64   ANSWER: the thread's number, if a system call returned it; a word that is not used
//!   sp +  80   WAITING: eight words (MAX_WORDS), `waiting(0)` to `waiting(7)`
//!   sp + 144   <- S
//! ```
//!
//! Nothing below S is the program's: AAPCS64 has no red zone. On x86-64 values wait in that red zone, so there is no
//! frame, only saves (`saves`).

use super::asm::{Asm, Reg, SP};
use crate::filter::MAX_WORDS;

/// Two registers for anything, and for what is computed.
pub(super) const A: Reg = 16;
pub(super) const B: Reg = 17;
/// For anything, if both are in use.
pub(super) const KEY: Reg = 15;
pub(super) const D: Reg = 14;
pub(super) const INDEX: Reg = 13;
/// Keeps its value over a restartable sequence.
pub(super) const VALUE: Reg = 12;
pub(super) const C: Reg = 11;

/// Offset at which the result of a system call waits.
pub(super) const ANSWER: u32 = 64;
const WAITING: u32 = 80;
/// By how many bytes the frame lowers the stack pointer.
pub(super) const FRAME: i32 = WAITING as i32 + 8 * MAX_WORDS as i32;

/// Offset at which a value waits while others are computed.
pub(super) const fn waiting(nth: usize) -> u32 {
    WAITING + 8 * (nth % MAX_WORDS) as u32
}

pub(super) fn enter(asm: &mut Asm) {
    asm.add_imm(SP, SP, -FRAME);
    asm.store_two(A, B, SP, 0);
    asm.store_two(D, KEY, SP, 16);
    asm.store_two(VALUE, INDEX, SP, 32);
    asm.flags(A);
    asm.store_two(C, A, SP, 48);
}

pub(super) fn leave(asm: &mut Asm) {
    asm.load_two(C, A, SP, 48);
    asm.set_flags(A);
    asm.load_two(VALUE, INDEX, SP, 32);
    asm.load_two(D, KEY, SP, 16);
    asm.load_two(A, B, SP, 0);
    asm.add_imm(SP, SP, FRAME);
}
