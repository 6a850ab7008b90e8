//! One more in a word of this CPU's line, out of the usual path: hits that were dropped.
//!
//! In: what the machine offers, the word on line 0. Out: code. One restartable sequence; without rseq an atomic addition on some line.
//! Spoils the registers that it is given, and flags.

use super::Machine;
use super::asm::{Asm, Cond, Fix, Reg, Update, ZERO};
use super::rseq::{self, CPU_ID, Section};

/// With rseq: its section, and the jump of threads without an area.
pub(super) type Counted = Option<(Section, Fix)>;

/// Adds one to this CPU's word; without rseq to that of some line.
pub(super) fn count(asm: &mut Asm, machine: &Machine, word: u64, scratch: [Reg; 4]) -> Counted {
    let [area, value, line, more] = scratch;
    let Some(rseq) = machine.rseq else {
        by_thread(asm, [line, more], machine.lines);
        asm.constant(area, word);
        asm.add_shifted(area, area, line, 6);
        asm.one(value);
        asm.update(machine.lse, Update::Add, value, area, [line, more]);
        return None;
    };
    let (section, unregistered) = rseq::section_with(asm, rseq, [area, value], |asm| {
        asm.load32(value, area, CPU_ID);
        asm.number(line, machine.lines.saturating_sub(1));
        asm.compare(value, line);
        let unregistered = asm.if_later(Cond::AboveEq);
        asm.constant(line, word);
        asm.add_shifted(line, line, value, 6);
        asm.load(value, line);
        asm.add_imm(value, value, 1);
        asm.store(value, line, 0);
        unregistered
    });
    Some((section, unregistered))
}

/// Adds one to the word on the last line, which is that of threads without an area.
pub(super) fn count_last(asm: &mut Asm, machine: &Machine, word: u64, scratch: [Reg; 4]) {
    let [area, value, line, more] = scratch;
    asm.constant(area, word.wrapping_add(64 * (u64::from(machine.lines.max(1)) - 1)));
    asm.one(value);
    asm.update(machine.lse, Update::Add, value, area, [line, more]);
}

/// 2^32 over the golden ratio: spreads neighbouring numbers.
const PHI: u32 = 0x9E37_79B1;

/// `to` becomes a number below `below` that differs between most threads that run at once: their blocks lie pages apart, most of them 8 MiB.
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
