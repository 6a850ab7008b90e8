//! Adds one to a word of this CPU's line, off the common path: hits that pass, that were filtered, that were
//! dropped.
//!
//! In: what the machine offers, the word on line 0. Out: code, and what is left to bind ([`Counted`]). It is
//! one restartable sequence; without rseq an atomic addition on some line.
//!
//! ```text
//!   word of line l = word + 64 l       l = the CPU; lines - 1 for threads without an area
//!
//!                 x16 A                  x17 B      x15 KEY             x11 C
//!   with rseq     cpu, then the word     the area   the count, then + 1   -
//!   without       1                      the word   scratch             scratch
//!   count_last    1                      the word   scratch             scratch
//! ```
//!
//! Flags may change; no other register does.

use super::asm::{Asm, Cond, Fix, Reg, Update, ZERO};
use super::frame::{A, B, C, KEY};
use super::machine::Machine;
use super::rseq::{self, CPU_ID, Section};

/// With rseq: the section, and the jump of threads without an area.
pub(super) type Counted = Option<(Section, Fix)>;

/// Adds one to a word of this CPU's line; without rseq, to the word of some line.
pub(super) fn count(asm: &mut Asm, machine: &Machine, word: u64) -> Counted {
    let Some(rseq) = machine.rseq else {
        by_thread(asm, [A, KEY], machine.lines);
        asm.constant(B, word);
        asm.add_shifted(B, B, A, 6);
        add_one(asm, machine);
        return None;
    };
    let mut unregistered = None;
    let section = rseq::section(asm, rseq, [B, A], |asm| {
        unregistered = Some(cpu(asm, machine));
        asm.constant(KEY, word);
        asm.add_shifted(A, KEY, A, 6);
        asm.load(KEY, A);
        asm.add_imm(KEY, KEY, 1);
        asm.store(KEY, A, 0);
    });
    unregistered.map(|unregistered| (section, unregistered))
}

/// In a section, with the area in `B`: `A` = this CPU's number. Jumps if there is none, or if the CPU was not
/// known when the plan was made. Uses `KEY` and flags.
pub(super) fn cpu(asm: &mut Asm, machine: &Machine) -> Fix {
    asm.load32(A, B, CPU_ID);
    asm.number(KEY, machine.lines.saturating_sub(1));
    asm.compare(A, KEY);
    asm.if_later(Cond::AboveEq)
}

/// `[B] = [B] + 1`, by an atomic access. Uses `A`, and without FEAT_LSE `C` and `KEY`.
pub(super) fn add_one(asm: &mut Asm, machine: &Machine) {
    asm.one(A);
    asm.update(machine.lse, Update::Add, A, B, [C, KEY]);
}

/// Adds one to the word on the last line, which is that of threads without an area.
pub(super) fn count_last(asm: &mut Asm, machine: &Machine, word: u64) {
    asm.constant(B, word.wrapping_add(64 * (u64::from(machine.lines.max(1)) - 1)));
    add_one(asm, machine);
}

/// 2^32 over the golden ratio: spreads neighbouring numbers.
const PHI: u32 = 0x9E37_79B1;

/// `to` = a number below `below` that differs between most threads which run at once: their blocks lie pages
/// apart, most of them 8 MiB.
///
/// ```text
///   to = ((tpidr_el0 >> 12)·PHI mod 2^32) >> (32 - k)      k = floor(log2(below)); 0 if k = 0
/// ```
pub(super) fn by_thread(asm: &mut Asm, [to, scratch]: [Reg; 2], below: u32) {
    match below.max(1).ilog2() {
        0 => asm.mov(to, ZERO),
        bits => {
            asm.thread_pointer(to);
            asm.bits(to, to, 12, 32);
            asm.number(scratch, PHI);
            asm.mul32(to, to, scratch);
            asm.bits(to, to, 32 - bits, bits);
        }
    }
}
