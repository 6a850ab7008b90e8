//! The stack at a hit: walked by frame pointers, or copied, into the record that is being written
//! (`record::stack`); the same as x86-64's twin.
//!
//! In: what is known about stacks in the process ([`Stacks`]), how much is requested. Out: code in two parts.
//! `bound`, before the restartable sequence, finds out how far the stack may be read. `fill`, inside the
//! sequence, reads it. `fold` makes one number of a walk's addresses, which are stored nowhere. General registers only.
//!
//! # Protocol
//!
//! Let S be the program's stack pointer, and E the end of the stack that S lies on. STK-1: nothing outside
//! [S, E) is ever read, whatever x29 and the words of the stack are. All of [S, E) stays mapped while the
//! thread is in the stub. E is taken from the first of these that is certain:
//!
//! ```text
//!   B2   E = [g + 8]                if g != 0      and [g] <= S < E      g = x28
//!   B1   E = main.1                 if main.0 < E  and main.0 <= S < E
//!   B3   E = [block] + [block + 8]  if [block] != 0 and [block] <= S < E
//!   B4   E = S | 4095               otherwise                  block = tpidr_el0 + stacks.block, main = stacks.main
//! ```
//!
//! B2 If the goroutine is known (`go`): its own bounds. The runtime moves a stack only where the goroutine
//!    does not run code of its own.
//! B1 The main thread's stack, as it was mapped when we attached.
//! B3 The C library's block of the thread (`stackblock`, `stackblock_size`).
//! B4 Only the 4 KiB that S lies on. The record shows it: its END is odd.
//!
//! In Go x29 points to the word below the stack pointer, where Go saves its caller's (`go`). So S is taken 16
//! bytes lower there, where stubs begin (GO-2). A copy would begin with what is no frame of the caller's, and
//! such a stack is not unwound by tables: refused.
//!
//! A walk: at a function's entry the return address is in x30, and x29 is still the caller's. Anywhere else
//! x29 may be the function's own. A frame is two words, the caller's x29 and where it goes on (AAPCS64,
//! 6.4.6). W1 Unless there is room for one more address, and S <= x29 and x29 + 16 <= E, the walk ends. Then
//! x29 is recorded. W2 Both words are loaded at once. W3 Repeat from W1.
//!
//! ```text
//!   W2     (x29, address) = ([x29], strip([x29 + 8]))
//!   walk   LIMIT = max(E - S - 15, 0)             x29 - S < LIMIT, unsigned, is S <= x29 and x29 + 16 <= E
//!   copy   LIMIT = min(E - S, most - 56)          both rounded down to a multiple of 8; 56 = FIRST_BYTE + 8
//! ```
//!
//! Addresses may be signed (pointer authentication): they go through x30 and `xpaclri`. That strips what the
//! processor put there, and is a hint on a processor without it.
//!
//! A copy: x30, stripped, in place of the first word; then the words from S up to E, as many as there is room
//! for. (On x86-64 the return address is the word at S.)
//!
//! # State
//!
//! ```text
//!           x16 A     x17 B   x11 C                x9 LIMIT   x12 TIME        x10 FRAME   x30 LINK
//!   bound   scratch   S       scratch              bytes      -               -           the program's
//!   walk    x29 - S   S       bytes in use         bytes      room, in bytes  x29         an address
//!   copy    a word    S       bytes copied         bytes      SLOT + 56       -           the program's, stripped
//!   fold    x29 - S   S       addresses left       bytes      -               x29         an address
//!           D = x14: the number;  KEY = x15: PHI
//!   end     -         S       bytes in use         -          -               x29         -
//!
//!   SLOT + 24   USED, which the record's program stores    SLOT = x13
//!   SLOT + 32   FRAME_WORD: x29
//!   SLOT + 40   END_WORD: E, from [sp + END]
//!   SLOT + 48   FIRST_BYTE: addresses; or x30 and the words from S on
//! ```
//!
//! The twin of this file describes what x29 may be, and what may come in between. On each new start of a
//! section, x30 is loaded from where it was saved.

use trapline_record::stack::{END as END_WORD, FIRST, FRAME as FRAME_WORD};
use trapline_record::tally::PHI;

use super::asm::{Asm, Cond, Fix, SP, ZERO};
use super::frame::{D, KEY};
use super::latency::G;
use super::saves::{A, AT, B, C, END, FRAME, LIMIT, LINK, SAVED_LINK, SLOT, TIME};
use crate::machine::Stacks;
use crate::request::Unwind;

const FIRST_BYTE: u32 = FIRST as u32 * 8;

/// The stack part of one record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    pub(super) stacks: Stacks,
    pub(super) unwind: Unwind,
    /// By how many bytes the stack pointer is below the program's.
    pub(super) step: u32,
    /// Upper bound of a record's bytes.
    pub(super) most: u32,
    /// The hit is at a function's entry.
    pub(super) at_entry: bool,
    /// g is in x28.
    pub(super) goroutine: bool,
}

impl Walk {
    /// Leaves `LIMIT`, and E in `[sp + END]`. Uses `A`, `B`, `C` and flags.
    pub(super) fn bound(&self, asm: &mut Asm) {
        asm.add_imm(B, SP, self.step.cast_signed());
        let mut done = Vec::new();
        if self.goroutine {
            goroutine(asm, &mut done);
        }
        self.main(asm, &mut done);
        if let Some(block) = self.stacks.block {
            thread(asm, block, &mut done);
        }
        asm.set_low(LIMIT, B, 12);
        done.into_iter().for_each(|fix| asm.bind(fix));
        asm.store(LIMIT, SP, END);
        asm.sub(LIMIT, LIMIT, B);
        match self.unwind {
            Unwind::Copy(_) => {
                asm.clear_low(LIMIT, LIMIT, 3);
                // One word is for x30.
                asm.number(A, self.most.saturating_sub(FIRST_BYTE + 8) & !7);
                asm.compare(LIMIT, A);
                asm.select(LIMIT, LIMIT, A, Cond::BelowEq);
            }
            _ => {
                asm.number(A, 15);
                asm.subs(LIMIT, LIMIT, A);
                asm.select(LIMIT, LIMIT, ZERO, Cond::AboveEq);
            }
        }
    }
    /// Step B1. If it is certain, jumps to a fix that it adds to `done`, with E in `LIMIT`. `B` = S.
    fn main(&self, asm: &mut Asm, done: &mut Vec<Fix>) {
        let (low, high) = self.stacks.main;
        if low >= high {
            return;
        }
        asm.constant(LIMIT, high);
        asm.compare(B, LIMIT);
        let above = asm.if_later(Cond::AboveEq);
        asm.constant(A, low);
        asm.compare(B, A);
        done.push(asm.if_later(Cond::AboveEq));
        asm.bind(above);
    }
    /// Fills the record at `SLOT`, but not its word USED; `AT` = how many of its bytes are used. `bound` left `LIMIT`
    /// and `[sp + END]`.
    pub(super) fn fill(&self, asm: &mut Asm) {
        asm.add_imm(B, SP, self.step.cast_signed());
        match self.unwind {
            Unwind::None => {}
            Unwind::Frames(frames) => self.walk(asm, frames),
            Unwind::Copy(_) => copy(asm),
        }
        asm.mov(AT, C);
        asm.store(FRAME, SLOT, FRAME_WORD as u32 * 8);
        asm.load_at(A, SP, END);
        asm.store(A, SLOT, END_WORD as u32 * 8);
    }
    /// `D` = the stack's number, begun with `from` (K1 of `programs::stacks`). `bound` left `LIMIT`, which stays.
    /// Uses `A`, `B`, `C`, `KEY`, `FRAME`, `LINK` and flags.
    pub(super) fn fold(&self, asm: &mut Asm, from: u32) {
        let Unwind::Frames(frames) = self.unwind else { return };
        asm.add_imm(B, SP, self.step.cast_signed());
        asm.constant(KEY, PHI);
        asm.number(D, from);
        asm.mov(FRAME, 29);
        let mut left = u32::from(frames);
        if self.at_entry {
            link(asm);
            asm.mul_add(D, D, KEY, LINK);
            left -= 1;
        }
        asm.number(C, left);
        let again = asm.here();
        let full = asm.if_zero_later(C);
        asm.sub(A, FRAME, B);
        asm.compare(A, LIMIT);
        let outside = asm.if_later(Cond::AboveEq);
        asm.load_two(FRAME, LINK, FRAME, 0);
        asm.strip_link();
        asm.mul_add(D, D, KEY, LINK);
        asm.add_imm(C, C, -1);
        asm.b(again);
        asm.bind(outside);
        asm.bind(full);
    }
    /// Steps W1 to W3.
    fn walk(&self, asm: &mut Asm, frames: u8) {
        let room = (u32::from(frames) * 8 + FIRST_BYTE).min(self.most & !7);
        asm.mov(FRAME, 29);
        asm.number(C, FIRST_BYTE);
        if self.at_entry {
            link(asm);
            asm.store(LINK, SLOT, FIRST_BYTE);
            asm.number(C, FIRST_BYTE + 8);
        }
        asm.number(TIME, room);
        let again = asm.here();
        asm.sub(A, FRAME, B);
        asm.compare(A, LIMIT);
        let outside = asm.if_later(Cond::AboveEq);
        asm.compare(C, TIME);
        let full = asm.if_later(Cond::AboveEq);
        asm.load_two(FRAME, LINK, FRAME, 0);
        asm.strip_link();
        asm.store_past(LINK, SLOT, C);
        asm.add_imm(C, C, 8);
        asm.b(again);
        asm.bind(outside);
        asm.bind(full);
    }
}

/// `LINK = strip([sp + SAVED_LINK])`
fn link(asm: &mut Asm) {
    asm.load_at(LINK, SP, SAVED_LINK);
    asm.strip_link();
}

/// Step B2.
fn goroutine(asm: &mut Asm, done: &mut Vec<Fix>) {
    let none = asm.if_zero_later(G);
    asm.load_two(C, LIMIT, G, 0);
    asm.compare(B, C);
    let below = asm.if_later(Cond::Below);
    asm.compare(B, LIMIT);
    done.push(asm.if_later(Cond::Below));
    asm.bind(none);
    asm.bind(below);
}

/// Step B3.
fn thread(asm: &mut Asm, block: i32, done: &mut Vec<Fix>) {
    asm.thread_pointer(A);
    asm.add_imm(A, A, block);
    asm.load_two(C, LIMIT, A, 0);
    let none = asm.if_zero_later(C);
    asm.compare(B, C);
    let below = asm.if_later(Cond::Below);
    asm.add(LIMIT, LIMIT, C);
    asm.compare(B, LIMIT);
    done.push(asm.if_later(Cond::Below));
    asm.bind(none);
    asm.bind(below);
}

/// Copies x30, and `LIMIT` bytes from S on.
fn copy(asm: &mut Asm) {
    link(asm);
    asm.store(LINK, SLOT, FIRST_BYTE);
    asm.add_imm(TIME, SLOT, FIRST_BYTE.cast_signed() + 8);
    asm.mov(C, ZERO);
    let none = asm.if_zero_later(LIMIT);
    let again = asm.here();
    asm.load_past(A, B, C);
    asm.store_past(A, TIME, C);
    asm.add_imm(C, C, 8);
    asm.compare(C, LIMIT);
    asm.if_to(Cond::Below, again);
    asm.bind(none);
    asm.add_imm(C, C, FIRST_BYTE.cast_signed() + 8);
    asm.mov(FRAME, 29);
}
