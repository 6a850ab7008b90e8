//! Time from entry to return: a stamp at the entry, a histogram at every exit; the same as x86-64's twin, by
//! the virtual counter.
//!
//! In: what is timed, and where the results are kept. Out: the code before an entry's or an exit's displaced
//! word, and what follows it. A stub pushes the registers that it uses, and finds the stamp cell of
//! (function, stack pointer at entry). When a `ret` or a jump out of the function is about to
//! run, the stack pointer is the same again:
//!
//! ```text
//!         sp       x16 A          x17 B         x14 SLOT   x15 KEY   x13 INDEX   x12 TIME      x11 C
//!   E1    S - 64   scratch        S             cell       tag       block       -             -
//!   E2    S - 64   stamp's owner  this owner    cell       -         -           -             -
//!   E3    S - 64   the time       this owner    cell       -         -           -             -
//!   X1    S - 64   stamp's time   its owner     cell       tag       block       the time      this owner
//!   X2    S - 64   stamp's time   -             cell       -         -           the duration  -
//!   X3    S - 64   scratch        scratch       block      scratch   bucket      the duration  scratch
//!   end   S        all registers are the program's
//!
//!   cell + 0   the time of the entry
//!   cell + 8   owner: function + 1, or S if only outermost calls are timed; 0 if there is no stamp
//! ```
//!
//! The frame is that of `timed`. S is a multiple of 16, so only every other cell is used.
//!
//! | step | what | a signal there |
//! |---|---|---|
//! | E1 | look up the cell; claim a block for the stack page if there is none | its handler's calls lie below sp, with cells of their own |
//! | E2 | a stamp there is of a call that did not return: counted for its function | the same |
//! | E3 | read the counter; store time and function at once | before it, the handler's time counts as before the call |
//! | X1 | read the counter, look up the cell; it must be this function's | the handler's time counts as after the call |
//! | X2 | take the stamp away | a call is recorded once: no code finds the stamp again |
//! | X3 | count, bucket, sum, extremes: each by a commit of its own (see `record`) | back to the beginning of the one that it broke |
//!
//! Stamp cells are private memory, a block of 512 to each stack page; see `record::latency`. A block is
//! claimed by an exclusive store. A signal makes that fail, and the block is looked at again. The counter
//! runs at one rate on all CPUs (Arm ARM D12.1), slower than x86-64's: calls shorter than its step take 0 or
//! 1 of it.
//!
//! In Go the place is (goroutine, S's distance from its stack's end), as in x86-64's twin: stacks move, and a
//! goroutine goes on in any thread. A function that checks whether its stack suffices and begins anew on a
//! larger one is entered twice at one such place: its first stamp is kept.
//!
//! With `outermost` a cell belongs to (thread, function) and holds {time, S of the outermost call}. Deeper
//! calls are ignored, and a call at a shallower place proves that the remembered one is gone. In Go it
//! belongs to (goroutine, function), and S is its distance from the stack's end. Return trampolines are
//! another form (`armed`).

mod armed;
mod mark;
mod record;
mod stamp_cell;
mod timed;

use trapline_record::latency::{self as words, at};

use super::asm::{Asm, Cond, Fix, ZERO};
use super::pending::Code;
use crate::machine::ExitKind;
use armed::Armed;
pub use armed::{Signed, trampoline_code};
pub(super) use mark::Mark;
use record::Rare;
pub(super) use stamp_cell::{Claim, Lookup};
use timed::{A, B, C, FRAME, SLOT, TIME};
pub(super) use timed::{G, STACK_END};
pub use timed::{Latency, Timed};

/// A stub that waits for its displaced code.
#[derive(Debug)]
#[must_use]
pub struct UnfinishedLatency<'a> {
    asm: Asm,
    timed: Timed<'a>,
    tail: Tail,
}

/// What is left to append behind the displaced code.
#[derive(Debug)]
enum Tail {
    Enter {
        loop_entry: bool,
        occupied: Fix,
        stamp: u64,
        lookup: Lookup,
        leave: u64,
    },
    Exit {
        lookup: Lookup,
        other: Fix,
        negative: Fix,
        clamped: u64,
        rare: Option<Rare>,
        kind: ExitKind,
        leave: u64,
    },
    Armed(Armed),
}

/// The stub of an entry, up to the displaced code. With `loop_entry` the entry is also a branch target, so
/// the first stamp of (function, S) is kept until the exit.
pub fn latency_enter(at: u64, timed: Timed<'_>, loop_entry: bool) -> UnfinishedLatency<'_> {
    let mut asm = Asm::new(at);
    let tail = timed.enter(&mut asm, loop_entry);
    UnfinishedLatency { asm, timed, tail }
}

/// The stub of an exit, up to the `ret` or jump that leaves.
pub fn latency_exit(at: u64, timed: Timed<'_>, kind: ExitKind) -> UnfinishedLatency<'_> {
    let mut asm = Asm::new(at);
    let tail = timed.exit(&mut asm, kind);
    UnfinishedLatency { asm, timed, tail }
}

/// The stub of an entry that puts a return trampoline into x30, up to the displaced code. `None` without
/// trampolines.
#[must_use]
pub fn latency_arm(at: u64, timed: Timed<'_>, signed: Option<Signed>) -> Option<UnfinishedLatency<'_>> {
    let trampolines = timed.latency.trampolines?;
    let mut asm = Asm::new(at);
    let tail = Tail::Armed(timed.arm(&mut asm, &trampolines, signed));
    Some(UnfinishedLatency { asm, timed, tail })
}

impl Code for UnfinishedLatency<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>> {
        let Self { mut asm, timed, tail } = self;
        displaced.iter().for_each(|word| asm.word(*word));
        if let Some(back) = back {
            asm.b(back);
        }
        timed.finish(&mut asm, tail);
        asm.pool();
        asm.words()
    }
}

impl Timed<'_> {
    fn enter(&self, asm: &mut Asm, loop_entry: bool) -> Tail {
        Self::prologue(asm);
        let lookup = self.lookup(asm, FRAME);
        asm.load_at(A, SLOT, 8);
        let occupied = asm.unless_zero_later(A);
        let stamp = asm.here();
        self.owner(asm, B);
        asm.clock(A);
        asm.store_two(A, B, SLOT, 0);
        let leave = asm.here();
        Self::epilogue(asm);
        Tail::Enter { loop_entry, occupied, stamp, lookup, leave }
    }

    fn exit(&self, asm: &mut Asm, kind: ExitKind) -> Tail {
        Self::prologue(asm);
        asm.clock(TIME);
        let lookup = self.lookup(asm, FRAME);
        asm.load_two(A, B, SLOT, 0);
        self.owner(asm, C);
        asm.compare(B, C);
        let other = asm.if_later(Cond::NotEqual);
        asm.subs(TIME, TIME, A);
        let negative = asm.if_later(Cond::Below);
        let clamped = asm.here();
        asm.store(ZERO, SLOT, 8);
        asm.constant(SLOT, self.block());
        let rare = match self.machine.rseq {
            Some(rseq) => Some(self.record_owned(asm, rseq, kind)),
            None => {
                self.record_shared(asm, kind);
                None
            }
        };
        let leave = asm.here();
        Self::epilogue(asm);
        Tail::Exit { lookup, other, negative, clamped, rare, kind, leave }
    }

    /// Appends the rare paths.
    fn finish(&self, asm: &mut Asm, tail: Tail) {
        match tail {
            Tail::Enter { loop_entry, occupied, stamp, lookup, leave } => {
                self.occupied(asm, loop_entry, occupied, stamp, leave);
                self.search(asm, lookup, Claim::Yes);
                asm.constant(B, self.latency.missed);
                self.add_one(asm);
                asm.b(leave);
            }
            Tail::Armed(armed) => self.finish_armed(asm, armed),
            Tail::Exit { lookup, other, negative, clamped, rare, kind, leave } => {
                asm.bind(negative);
                asm.constant(B, self.last(at::CLAMPED));
                self.add_one(asm);
                asm.mov(TIME, ZERO);
                asm.b(clamped);
                self.search(asm, lookup, Claim::No);
                let unpaired = asm.b_later();
                asm.bind(other);
                if self.latency.outermost {
                    // A deeper call than the one that is timed.
                    asm.if_to(Cond::Above, leave);
                }
                asm.bind(unpaired);
                asm.constant(B, self.last(at::UNPAIRED));
                self.add_one(asm);
                asm.b(leave);
                if let Some(rare) = rare {
                    self.record_rare(asm, rare, kind);
                }
            }
        }
    }

    /// E2: the path of an entry that finds a stamp in its cell; `A` = the stamp's owner.
    fn occupied(&self, asm: &mut Asm, loop_entry: bool, from: Fix, stamp: u64, leave: u64) {
        asm.bind(from);
        self.owner(asm, B);
        asm.compare(A, B);
        if loop_entry {
            asm.if_to(Cond::Equal, leave); // the first stamp is kept
        }
        if self.latency.outermost {
            asm.if_to(Cond::Above, leave); // deeper than the outermost call
            asm.constant(B, self.last(at::UNRETURNED));
            self.add_one(asm);
            return asm.b(stamp);
        }
        asm.number(B, self.latency.functions);
        asm.compare(A, B);
        asm.if_to(Cond::Above, stamp); // not a number that stubs write
        // Counted on the last line of function A - 1: one stride further, and one line back.
        asm.constant(B, self.stride());
        asm.constant(C, self.latency.area.wrapping_sub(words::STRIDE).wrapping_add(at::UNRETURNED));
        asm.mul_add(B, A, B, C);
        self.add_one(asm);
        asm.b(stamp);
    }
}
