//! Which calls are recorded, if a filter decides at their entry and their exits are recorded too; the same as
//! x86-64's twin.
//!
//! In: which function and call, by how many bytes the stack pointer is below the program's. Out: code that
//! leaves an entry mark in the call's stamp cell, or takes away what an abandoned call left there. For an
//! exit, code that takes the mark back, and finds out whether there was one.
//!
//! ```text
//!   entry, recorded     [cell + 8] = function + 1
//!   entry, rejected     [cell + 8] = 0
//!   exit                recorded if [cell + 8] = function + 1; then [cell + 8] = 0
//!
//!   sp = S - depth      CELL = cell; A, B, C, KEY, INDEX and flags are free    (`stamp_cell`)
//! ```

use super::area::Latency;
use super::saves::{A, B, CELL};
use super::stamp_cell::{Claim, Lookup, StampCell};
use crate::aarch64::stub::asm::{Asm, Cond, Fix, ZERO};
use crate::aarch64::stub::counted::add_one;
use crate::aarch64::stub::machine::Machine;

/// A look for a cell, to be finished behind the displaced code.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Mark {
    lookup: Lookup,
    /// Where the common path goes on.
    after: u64,
    unmarked: Option<Fix>,
}

/// The marks of one function's calls.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Marks {
    machine: Machine,
    cell: StampCell,
    /// Address of the control block's MISSED word.
    missed: u64,
}

impl Marks {
    pub(in super::super) const fn of(
        machine: &Machine,
        latency: &Latency,
        function: u32,
        goroutine: bool,
    ) -> Self {
        let cell = StampCell::of(latency, function, goroutine);
        Self { machine: *machine, cell, missed: latency.missed }
    }
    /// At an entry: stores whether the call is recorded.
    pub(in super::super) fn mark(&self, asm: &mut Asm, depth: u32, recorded: bool) -> Mark {
        let lookup = self.cell.lookup(asm, depth);
        if recorded {
            asm.number(B, self.cell.number());
            asm.store(B, CELL, 8);
        } else {
            asm.store(ZERO, CELL, 8);
        }
        Mark { lookup, after: asm.here(), unmarked: None }
    }
    /// At an exit: takes the mark back, and jumps if there is none.
    pub(in super::super) fn look(&self, asm: &mut Asm, depth: u32) -> Mark {
        let lookup = self.cell.lookup(asm, depth);
        asm.load_at(A, CELL, 8);
        asm.number(B, self.cell.number());
        asm.compare(A, B);
        let unmarked = asm.if_later(Cond::NotEqual);
        asm.store(ZERO, CELL, 8);
        Mark { lookup, after: asm.here(), unmarked: Some(unmarked) }
    }
    /// Behind the displaced code: the path of an entry that did not find the cell of its mark at the first look.
    /// If there is no room for a block, the call's exit will not be recorded, which counts as missed.
    pub(in super::super) fn finish_marked(&self, asm: &mut Asm, mark: Mark) {
        self.cell.search(asm, mark.lookup, Claim::Yes);
        asm.constant(B, self.missed);
        add_one(asm, &self.machine);
        asm.b(mark.after);
    }
    /// The same where a mark is taken away: without a block there is none.
    pub(in super::super) fn finish_removed(&self, asm: &mut Asm, mark: Mark) {
        self.finish_look(asm, mark, mark.after);
    }
    /// Behind the displaced code: the path of an exit without a mark, or without a block that could hold one;
    /// it goes on at `leave`.
    pub(in super::super) fn finish_look(&self, asm: &mut Asm, mark: Mark, leave: u64) {
        self.cell.search(asm, mark.lookup, Claim::No);
        mark.unmarked.into_iter().for_each(|fix| asm.bind(fix));
        asm.b(leave);
    }
}
