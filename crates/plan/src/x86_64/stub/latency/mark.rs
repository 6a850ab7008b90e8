//! Which calls are recorded, where a filter decides at their entry and their exits are recorded too.
//!
//! In: whose call. Out: code that leaves a mark in the call's slot, or takes away what an abandoned call left there; and code that
//! takes the mark back at an exit, and tells whether there was one. Slots are those of stamps (`record::latency`); a mark is
//! the function's number in the second word. An exit so knows its own call by (stack page, stack pointer, function), in private
//! memory, and a call that was filtered costs its exit a look.

use super::slot::{Claim, Lookup};
use super::{Timed, reload, save, spill};
use crate::x86_64::stub::asm::{Asm, Cond, Fix, Mem, RSI};

/// A look at a slot, to be finished behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Mark {
    lookup: Lookup,
    /// Where the usual path goes on, rsi still being changed.
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
    /// At an entry: notes whether the call is recorded. Spoils rax, rdx and flags.
    pub(in super::super) fn mark(&self, asm: &mut Asm<'_>, recorded: bool) -> Mark {
        spill(asm, save::RSI, RSI);
        let lookup = self.lookup(asm);
        asm.store_imm(Mem::At(RSI, 8), if recorded { self.function as i32 + 1 } else { 0 });
        let after = asm.here();
        reload(asm, RSI, save::RSI);
        Mark { lookup, after, unmarked: None }
    }
    /// At an exit: takes the mark back, and jumps away if there is none. Spoils rax, rdx and flags.
    pub(in super::super) fn take_mark(&self, asm: &mut Asm<'_>) -> Mark {
        spill(asm, save::RSI, RSI);
        let lookup = self.lookup(asm);
        let unmarked = asm.unbroken(|asm| {
            asm.cmp_mem_imm(Mem::At(RSI, 8), self.function as i32 + 1);
            asm.jcc_later(Cond::NotEqual)
        });
        asm.store_imm(Mem::At(RSI, 8), 0);
        let after = asm.here();
        reload(asm, RSI, save::RSI);
        Mark { lookup, after, unmarked: Some(unmarked) }
    }
    /// Behind the displaced code: an entry whose slot was not in the first place looked at. Without room for a block the call's
    /// exit will not be recorded, which counts as missed.
    pub(in super::super) fn finish_mark(&self, asm: &mut Asm<'_>, mark: Mark) {
        self.miss(asm, mark.lookup, Claim::Yes, None, Mem::Rip(self.latency.missed), mark.after);
    }
    /// Behind the displaced code: what has no mark, or no block to have it in, goes on at `leave`.
    pub(in super::super) fn finish_unmarked(&self, asm: &mut Asm<'_>, mark: Mark, claim: Claim, leave: u64) {
        self.search(asm, mark.lookup, claim);
        if let Some(unmarked) = mark.unmarked {
            asm.bind(unmarked);
        }
        reload(asm, RSI, save::RSI);
        asm.jmp(leave);
    }
}
