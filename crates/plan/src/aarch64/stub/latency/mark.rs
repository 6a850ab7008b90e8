//! Which calls are recorded, where a filter decides at their entry and their exits are recorded too; what x86-64's twin does.
//!
//! In: whose call, how far the stack pointer stands below the program's. Out: code that leaves a mark in the call's slot, or takes away what an abandoned call left
//! there; and code that takes the mark back at an exit, and tells whether there was one. A mark is the function's number in the slot's second word.

use super::slot::{Claim, Lookup};
use super::{A, B, SLOT, Timed};
use crate::aarch64::stub::asm::{Asm, Cond, Fix, ZERO};

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
    /// At an entry: notes whether the call is recorded. Spoils `A`, `B`, `KEY`, `SLOT`, `INDEX`.
    pub(in super::super) fn mark(&self, asm: &mut Asm, depth: u32, recorded: bool) -> Mark {
        let lookup = self.lookup(asm, depth);
        if recorded {
            asm.number(B, self.function + 1);
            asm.store(B, SLOT, 8);
        } else {
            asm.store(ZERO, SLOT, 8);
        }
        Mark { lookup, after: asm.here(), unmarked: None }
    }
    /// At an exit: takes the mark back, and jumps away if there is none. The same are spoilt.
    pub(in super::super) fn take_mark(&self, asm: &mut Asm, depth: u32) -> Mark {
        let lookup = self.lookup(asm, depth);
        asm.load_at(A, SLOT, 8);
        asm.number(B, self.function + 1);
        asm.compare(A, B);
        let unmarked = asm.if_later(Cond::NotEqual);
        asm.store(ZERO, SLOT, 8);
        Mark { lookup, after: asm.here(), unmarked: Some(unmarked) }
    }
    /// Behind the displaced code: an entry whose slot was not in the first place looked at. Without room for a block the call's exit will not be recorded, which
    /// counts as missed.
    pub(in super::super) fn finish_mark(&self, asm: &mut Asm, mark: Mark) {
        self.search(asm, mark.lookup, Claim::Yes);
        asm.constant(B, self.latency.missed);
        self.add_one(asm);
        asm.b(mark.after);
    }
    /// Behind the displaced code: what has no mark, or no block to have it in, goes on at `leave`.
    pub(in super::super) fn finish_unmarked(&self, asm: &mut Asm, mark: Mark, leave: u64) {
        self.search(asm, mark.lookup, Claim::No);
        mark.unmarked.into_iter().for_each(|fix| asm.bind(fix));
        asm.b(leave);
    }
}
