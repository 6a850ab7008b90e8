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

use super::stamp_cell::{Claim, Lookup};
use super::timed::Timed;
use crate::x86_64::stub::asm::{Asm, Cond, Fix, Mem, R11};

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

impl Mark {
    /// Where the common path goes on.
    pub(in super::super) const fn after(self) -> u64 {
        self.after
    }
    /// The look for a cell, which continues behind the displaced code if the first look does not find it.
    pub(in super::super) const fn lookup(self) -> Lookup {
        self.lookup
    }
}

impl MarkLookup {
    /// The look for a cell, which continues behind the displaced code if the first look does not find it.
    pub(in super::super) const fn lookup(self) -> Lookup {
        self.lookup
    }
}

impl Timed<'_> {
    /// At an entry: stores whether the call is recorded. Uses rax, rdx, r11 and flags.
    pub(in super::super) fn mark(&self, asm: &mut Asm<'_>, recorded: bool) -> Mark {
        let (lookup, word) = self.second_word(asm, R11);
        asm.store_imm(word, if recorded { self.function as i32 + 1 } else { 0 });
        Mark { lookup, after: asm.here() }
    }
    /// At an exit: jumps if there is a mark. Uses rax, rdx, r11 and flags.
    pub(in super::super) fn ask_mark(&self, asm: &mut Asm<'_>) -> MarkLookup {
        let (lookup, word) = self.second_word(asm, R11);
        let marked = asm.unbroken(|asm| {
            asm.cmp_mem_imm(word, self.function as i32 + 1);
            asm.jcc_later(Cond::Equal)
        });
        MarkLookup { lookup, word, marked }
    }
    /// Binds the jumps of exits that have a mark, and takes the mark back.
    pub(in super::super) fn take_mark(&self, asm: &mut Asm<'_>, asked: MarkLookup) {
        asm.bind(asked.marked);
        asm.store_imm(asked.word, 0);
    }
    /// Behind the displaced code: the path of an entry that did not find its cell at the first look. If there
    /// is no room for a block, the call's exit will not be recorded, which counts as missed.
    pub(in super::super) fn finish_mark(&self, asm: &mut Asm<'_>, mark: Mark) {
        self.miss(asm, mark.lookup, Claim::Yes, None, self.latency.missed, mark.after);
    }
}
