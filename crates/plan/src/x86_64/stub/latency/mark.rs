//! Which calls are recorded, where a filter decides at their entry and their exits are recorded too.
//!
//! In: whose call. Out: code that leaves a mark in the call's slot, or takes away what an abandoned call left there; and code that
//! takes the mark back at an exit, and tells whether there was one. Slots are those of stamps (`record::latency`); a mark is
//! the function's number in the second word. An exit so knows its own call by (stack page, stack pointer, function), in private
//! memory, and a call that was filtered costs its exit a look.

use super::Timed;
use super::slot::{Claim, Lookup};
use crate::x86_64::stub::asm::{Asm, Cond, Fix, Mem, R11};

/// A look at a slot, to be finished behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Mark {
    lookup: Lookup,
    /// Where the usual path goes on.
    after: u64,
    unmarked: Option<Fix>,
}

impl Mark {
    /// Where the usual path goes on.
    pub(in super::super) const fn after(self) -> u64 {
        self.after
    }
}

impl Timed<'_> {
    /// At an entry: notes whether the call is recorded. Spoils rax, rdx, r11 and flags.
    pub(in super::super) fn mark(&self, asm: &mut Asm<'_>, recorded: bool) -> Mark {
        let (lookup, word) = self.second_word(asm, R11);
        asm.store_imm(word, if recorded { self.function as i32 + 1 } else { 0 });
        Mark { lookup, after: asm.here(), unmarked: None }
    }
    /// At an exit: takes the mark back, and jumps away if there is none. Spoils rax, rdx, r11 and flags.
    pub(in super::super) fn take_mark(&self, asm: &mut Asm<'_>) -> Mark {
        let (lookup, word) = self.second_word(asm, R11);
        let unmarked = asm.unbroken(|asm| {
            asm.cmp_mem_imm(word, self.function as i32 + 1);
            asm.jcc_later(Cond::NotEqual)
        });
        asm.store_imm(word, 0);
        Mark { lookup, after: asm.here(), unmarked: Some(unmarked) }
    }
    /// Behind the displaced code: an entry whose slot was not in the first place looked at. Without room for a block the call's
    /// exit will not be recorded, which counts as missed.
    pub(in super::super) fn finish_mark(&self, asm: &mut Asm<'_>, mark: Mark) {
        self.miss(asm, mark.lookup, Claim::Yes, None, Mem::Rip(self.latency.missed), mark.after);
    }
    /// Behind the displaced code: falls out of the end with what has no mark, or no block to have it in.
    pub(in super::super) fn finish_unmarked(&self, asm: &mut Asm<'_>, mark: Mark, claim: Claim) {
        self.search(asm, mark.lookup, claim);
        if let Some(unmarked) = mark.unmarked {
            asm.bind(unmarked);
        }
    }
}
