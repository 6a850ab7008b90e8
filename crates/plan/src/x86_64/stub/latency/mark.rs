//! Which calls are recorded, where a filter decides at their entry and their exits are recorded too.
//!
//! In: whose call. Out: code that leaves a mark in the call's slot, or takes away what an abandoned call left there; and code that
//! takes the mark back at an exit, and tells whether there was one. Slots are those of stamps (`record::latency`); a mark is
//! the function's number in the second word. An exit so knows its own call by (stack page, stack pointer, function), in private
//! memory, and a call that was filtered costs its exit a look.

use super::Timed;
use super::slot::{Claim, Lookup};
use crate::x86_64::stub::asm::{Asm, Cond, Fix, Mem, R11};

/// A mark that was left or taken away, to be finished behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Mark {
    lookup: Lookup,
    /// Where the usual path goes on.
    after: u64,
}

/// A look for a mark, and the jump if there is one.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Asked {
    lookup: Lookup,
    word: Mem,
    marked: Fix,
}

impl Mark {
    /// Where the usual path goes on.
    pub(in super::super) const fn after(self) -> u64 {
        self.after
    }
    /// A slot that was not in the first place looked at.
    pub(in super::super) const fn lookup(self) -> Lookup {
        self.lookup
    }
}

impl Asked {
    /// A slot that was not in the first place looked at.
    pub(in super::super) const fn lookup(self) -> Lookup {
        self.lookup
    }
}

impl Timed<'_> {
    /// At an entry: notes whether the call is recorded. Spoils rax, rdx, r11 and flags.
    pub(in super::super) fn mark(&self, asm: &mut Asm<'_>, recorded: bool) -> Mark {
        let (lookup, word) = self.second_word(asm, R11);
        asm.store_imm(word, if recorded { self.function as i32 + 1 } else { 0 });
        Mark { lookup, after: asm.here() }
    }
    /// At an exit: jumps away if there is a mark. Spoils rax, rdx, r11 and flags.
    pub(in super::super) fn ask_mark(&self, asm: &mut Asm<'_>) -> Asked {
        let (lookup, word) = self.second_word(asm, R11);
        let marked = asm.unbroken(|asm| {
            asm.cmp_mem_imm(word, self.function as i32 + 1);
            asm.jcc_later(Cond::Equal)
        });
        Asked { lookup, word, marked }
    }
    /// Where exits that have one come together: takes it back.
    pub(in super::super) fn take_mark(&self, asm: &mut Asm<'_>, asked: Asked) {
        asm.bind(asked.marked);
        asm.store_imm(asked.word, 0);
    }
    /// Behind the displaced code: an entry whose slot was not in the first place looked at. Without room for a block the call's
    /// exit will not be recorded, which counts as missed.
    pub(in super::super) fn finish_mark(&self, asm: &mut Asm<'_>, mark: Mark) {
        self.miss(asm, mark.lookup, Claim::Yes, None, self.latency.missed, mark.after);
    }
}
