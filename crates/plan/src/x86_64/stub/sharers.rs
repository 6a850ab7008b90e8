//! The number of the process that a hit is in: H1 to H3 of `record::sharers`.
//!
//! In: where the process' own page is, and the word that counts the numbers. Out: code that sees to it that the page has
//! the number; out of line, for the first hit of a process, code that takes one. Uses rax, r11, rdx and flags. Invariant: SHR-1.
//! Does not: put the number into a key (the hit's program).

use super::asm::{Alu, Asm, Cond, Fix, Mem, R11, RAX, RDX};
use crate::hit::MapsAt;

/// Code that is left to append out of line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taking {
    at: MapsAt,
    new: Fix,
    /// Where the hit goes on.
    back: u64,
}

/// H1.
pub(super) fn look(asm: &mut Asm<'_>, at: MapsAt) -> Taking {
    asm.mov_imm64(R11, at.own_page);
    asm.alu_mem_imm(Alu::Cmp, Mem::At(R11, 0), 0, false);
    let new = asm.jcc_later(Cond::Equal);
    Taking { at, new, back: asm.here() }
}

impl Taking {
    /// H2 and H3, with the page in r11.
    pub(super) fn finish(self, asm: &mut Asm<'_>) {
        asm.bind(self.new);
        asm.mov_imm32(RDX, 1);
        asm.exchange_add(Mem::Rip(self.at.sharers), RDX);
        asm.lea(RDX, Mem::At(RDX, 1));
        asm.shift(super::asm::Shift::Left, RDX, 32, true);
        asm.mov_imm32(RAX, 0);
        asm.cmpxchg(Mem::At(R11, 0), RDX);
        asm.jmp(self.back);
    }
}
