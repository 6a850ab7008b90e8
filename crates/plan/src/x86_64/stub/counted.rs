//! Adds one to a word of this CPU's line, off the common path: hits that were dropped, that were filtered,
//! calls that began.
//!
//! In: what the machine offers. Out: code, and what waits for the word's address ([`Counted`]). It is one
//! restartable sequence; without rseq it is a `lock add` on some line.
//!
//! ```text
//!   rseq        r11 = CPU              a jump if the thread has no area
//!               r11 = word + 64 · r11  word: its address on line 0
//!               [r11] += 1             the commit
//!   no rseq     r11 = word + 64 · line (`rseq::any_line`)
//!               lock [r11] += 1
//!   uses        r11, flags; the stack stays as it is
//! ```

use super::asm::{Alu, Asm, Cond, Fix, Mem, R11, Shift};
use super::machine::Machine;
use super::rseq::{self, CPU_ID, Section};
use crate::machine::Rseq;

/// A count that waits for its word's address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    /// With rseq: the section, and the jump of threads without an area.
    owned: Option<(Section, Fix)>,
    pub(super) line: Fix,
}

/// Adds one to a word whose address on line 0 is at `word`. Returns the section, and the jump of threads without an
/// area, with rseq. Uses r11 and flags.
pub(super) fn count_at(asm: &mut Asm<'_>, machine: &Machine, word: Mem) -> Option<(Section, Fix)> {
    if let Some(rseq) = machine.rseq {
        return Some(rseq::section_with(asm, rseq, R11, |asm| {
            let unregistered = own_line(asm, rseq, machine);
            asm.alu_load(Alu::Add, R11, word);
            asm.alu_mem_imm(Alu::Add, Mem::At(R11, 0), 1, false);
            unregistered
        }));
    }
    rseq::any_line(asm, R11, machine.rdpid, machine.lines);
    asm.shift(Shift::Left, R11, 6, false);
    asm.alu_load(Alu::Add, R11, word);
    asm.alu_mem_imm(Alu::Add, Mem::At(R11, 0), 1, true);
    None
}

/// r11 = 64 · CPU. Jumps if the thread has no area.
fn own_line(asm: &mut Asm<'_>, rseq: Rseq, machine: &Machine) -> Fix {
    asm.load32(R11, Mem::Fs(rseq.offset + CPU_ID));
    asm.alu_imm(Alu::Cmp, R11, machine.lines as i32 - 1, false);
    let unregistered = asm.jcc_later(Cond::AboveEq);
    asm.shift(Shift::Left, R11, 6, false);
    unregistered
}

impl Counted {
    pub(super) fn section(&self) -> Option<Section> {
        self.owned.map(|(section, _)| section)
    }
    pub(super) fn bind_unregistered(&self, asm: &mut Asm<'_>) {
        self.owned.into_iter().for_each(|(_, unregistered)| asm.bind(unregistered));
    }
}

/// Adds one to a word of this CPU's line; without rseq, to the word of some line. Uses r11 and flags.
pub(super) fn count(asm: &mut Asm<'_>, machine: &Machine) -> Counted {
    let Some(rseq) = machine.rseq else {
        let line = any_line(asm, machine);
        asm.alu_mem_imm(Alu::Add, Mem::At(R11, 0), 1, true);
        return Counted { owned: None, line };
    };
    let (section, (unregistered, line)) = rseq::section_with(asm, rseq, R11, |asm| {
        let unregistered = own_line(asm, rseq, machine);
        let line = asm.alu_load_later(Alu::Add, R11);
        asm.alu_mem_imm(Alu::Add, Mem::At(R11, 0), 1, false);
        (unregistered, line)
    });
    Counted { owned: Some((section, unregistered)), line }
}

/// r11 = word + 64 · some line. The returned fix waits for the word's address on line 0. Uses flags.
pub(super) fn any_line(asm: &mut Asm<'_>, machine: &Machine) -> Fix {
    rseq::any_line(asm, R11, machine.rdpid, machine.lines);
    asm.shift(Shift::Left, R11, 6, false);
    asm.alu_load_later(Alu::Add, R11)
}
