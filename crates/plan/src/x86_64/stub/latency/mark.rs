//! Which calls are recorded, if a filter decides at their entry and their exits are recorded too.
//!
//! In: which function and call. Out: code that leaves an entry mark in the call's stamp cell, or takes away
//! what an abandoned call left there. For an exit, code that takes the mark back, and finds out whether there
//! was one. The cells are those of stamps (`record::latency`). A mark is the function's number in the second
//! word. So an exit recognizes its own call by (stack page, stack pointer, function), in private memory. A
//! call that was filtered costs its exit one look.
//!
//! ```text
//!   r11, rdx, rax   find the cell (`stamp_cell`): its second word is r11 + rdx · 2^scale + blocks + 8
//!   entry           [word] = function + 1 if the call is recorded, else 0
//!   exit            marked if [word] = function + 1;  then [word] = 0
//!   rsp             S - step; rax, rdx, r11 and flags are saved (`saves`)
//! ```

use super::area::Latency;
use super::stamp_cell::{Claim, Lookup, StampCell, owner};
use crate::x86_64::stub::asm::{Asm, Cond, Fix, Mem, R11};
use crate::x86_64::stub::machine::Liveness;

/// A mark that was left or taken away, to be finished behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Mark {
    lookup: Lookup,
    /// Where the common path goes on.
    after: u64,
}

/// A look for a mark, and the jump if there is one.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct MarkLookup {
    lookup: Lookup,
    word: Mem,
    marked: Fix,
}

/// The marks of one function's calls.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Marks {
    cell: StampCell,
    /// What marks a cell as the function's.
    owner: i32,
    /// Address of the control block's MISSED word.
    missed: u64,
}

impl Marks {
    pub(in super::super) const fn of(latency: &Latency, function: u32, site: Liveness) -> Self {
        let cell = StampCell::of(latency, function, site);
        Self { cell, owner: owner(function), missed: latency.missed }
    }
    /// At an entry: stores whether the call is recorded. Uses rax, rdx, r11 and flags.
    pub(in super::super) fn mark(&self, asm: &mut Asm<'_>, recorded: bool) -> Mark {
        let (lookup, word) = self.cell.second_word(asm, R11);
        asm.store_imm(word, if recorded { self.owner } else { 0 });
        Mark { lookup, after: asm.here() }
    }
    /// At an exit: jumps if there is a mark. Uses rax, rdx, r11 and flags.
    pub(in super::super) fn look(&self, asm: &mut Asm<'_>) -> MarkLookup {
        let (lookup, word) = self.cell.second_word(asm, R11);
        let marked = asm.unbroken(|asm| {
            asm.cmp_mem_imm(word, self.owner);
            asm.jcc_later(Cond::Equal)
        });
        MarkLookup { lookup, word, marked }
    }
    /// Behind the displaced code: the path of an entry that did not find the cell of its mark at the first look.
    /// If there is no room for a block, the call's exit will not be recorded, which counts as missed.
    pub(in super::super) fn finish_marked(&self, asm: &mut Asm<'_>, mark: Mark) {
        self.cell.miss(asm, mark.lookup, Claim::Yes);
        asm.add_one(self.missed);
        asm.jmp(mark.after);
    }
    /// The same where a mark is taken away: without a block there is none.
    pub(in super::super) fn finish_removed(&self, asm: &mut Asm<'_>, mark: Mark) {
        self.cell.search(asm, mark.lookup, Claim::Yes);
        asm.jmp(mark.after);
    }
    /// Behind the displaced code: the path of an exit that did not find its cell at the first look, and goes on at
    /// `leave` without one. Then binds the jump of exits that have a mark, and takes the mark back.
    pub(in super::super) fn finish_look(&self, asm: &mut Asm<'_>, looked: MarkLookup, leave: u64) {
        self.cell.search(asm, looked.lookup, Claim::No);
        asm.jmp(leave);
        asm.bind(looked.marked);
        asm.store_imm(looked.word, 0);
    }
}
