//! One site of a timed function: the parts that its stubs are made of, and the code of an entry and an exit.
//!
//! In: addresses and sizes from the layout. Out: the part of a stub before the displaced code, and the rare
//! paths behind it.
//!
//! | part | what it owns |
//! |---|---|
//! | [`Saves`] | the registers that the code overwrites |
//! | [`StampCell`] | the way to the call's stamp |
//! | [`DurationBlock`] | the results |
//! | [`Arming`] | the return trampoline, if the call gets one |

use trapline_record::latency::{self as words, at};

use super::super::asm::{Asm, Cond, Fix, NoWords, ZERO};
use super::super::counted::add_one;
use super::super::machine::Machine;
use super::super::pending::Code;
use super::area::Latency;
use super::armed::{Armed, Arming, Signed};
use super::record::{DurationBlock, Rare};
use super::saves::{A, B, C, CELL, FRAME, Saves, TIME};
use super::stamp_cell::{Claim, Lookup, StampCell};
use crate::machine::ExitKind;

/// One site of a timed function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timed<'a> {
    /// What the process offers.
    pub machine: &'a Machine,
    /// What is timed, and where the results are kept.
    pub latency: &'a Latency,
    /// The function's number, below `latency.functions`.
    pub function: u32,
    /// The call belongs to the goroutine that x28 names, wherever its stack is, and not to a place on the
    /// stack.
    pub goroutine: bool,
}

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
    Armed(Arming, Armed),
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
    let arming = Arming::of(timed.machine, timed.latency, timed.function)?;
    let mut asm = Asm::new(at);
    let armed = arming.begin(&mut asm, signed);
    let tail = Tail::Armed(arming, armed);
    Some(UnfinishedLatency { asm, timed, tail })
}

impl Code for UnfinishedLatency<'_> {
    fn displaced_at(&self) -> u64 {
        self.asm.here()
    }
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords> {
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
    const fn cell(&self) -> StampCell {
        StampCell::of(self.latency, self.function, self.goroutine)
    }
    const fn durations(&self) -> DurationBlock {
        DurationBlock::of(self.machine, self.latency, self.function)
    }

    fn enter(&self, asm: &mut Asm, loop_entry: bool) -> Tail {
        let cell = self.cell();
        Saves::enter(asm);
        let lookup = cell.lookup(asm, FRAME);
        asm.load_at(A, CELL, 8);
        let occupied = asm.unless_zero_later(A);
        let stamp = asm.here();
        cell.owner(asm, B);
        asm.clock(A);
        asm.store_two(A, B, CELL, 0);
        let leave = asm.here();
        Saves::leave(asm);
        Tail::Enter { loop_entry, occupied, stamp, lookup, leave }
    }

    fn exit(&self, asm: &mut Asm, kind: ExitKind) -> Tail {
        let (cell, durations) = (self.cell(), self.durations());
        Saves::enter(asm);
        asm.clock(TIME);
        let lookup = cell.lookup(asm, FRAME);
        asm.load_two(A, B, CELL, 0);
        cell.owner(asm, C);
        asm.compare(B, C);
        let other = asm.if_later(Cond::NotEqual);
        asm.subs(TIME, TIME, A);
        let negative = asm.if_later(Cond::Below);
        let clamped = asm.here();
        asm.store(ZERO, CELL, 8);
        asm.constant(CELL, durations.at());
        let rare = durations.record(asm, Some(kind));
        let leave = asm.here();
        Saves::leave(asm);
        Tail::Exit { lookup, other, negative, clamped, rare, kind, leave }
    }

    /// Appends the rare paths.
    fn finish(&self, asm: &mut Asm, tail: Tail) {
        let (cell, durations) = (self.cell(), self.durations());
        match tail {
            Tail::Enter { loop_entry, occupied, stamp, lookup, leave } => {
                self.occupied(asm, loop_entry, occupied, stamp, leave);
                cell.search(asm, lookup, Claim::Yes);
                asm.constant(B, self.latency.missed);
                add_one(asm, self.machine);
                asm.b(leave);
            }
            Tail::Armed(arming, armed) => arming.finish(asm, armed),
            Tail::Exit { lookup, other, negative, clamped, rare, kind, leave } => {
                asm.bind(negative);
                asm.constant(B, durations.last(at::CLAMPED));
                add_one(asm, self.machine);
                asm.mov(TIME, ZERO);
                asm.b(clamped);
                cell.search(asm, lookup, Claim::No);
                let unpaired = asm.b_later();
                asm.bind(other);
                if self.latency.outermost {
                    // A deeper call than the one that is timed.
                    asm.if_to(Cond::Above, leave);
                }
                asm.bind(unpaired);
                asm.constant(B, durations.last(at::UNPAIRED));
                add_one(asm, self.machine);
                asm.b(leave);
                if let Some(rare) = rare {
                    durations.record_rare(asm, rare, Some(kind));
                }
            }
        }
    }

    /// E2: the path of an entry that finds a stamp in its cell; `A` = the stamp's owner.
    fn occupied(&self, asm: &mut Asm, loop_entry: bool, from: Fix, stamp: u64, leave: u64) {
        let durations = self.durations();
        asm.bind(from);
        self.cell().owner(asm, B);
        asm.compare(A, B);
        if loop_entry {
            asm.if_to(Cond::Equal, leave); // the first stamp is kept
        }
        if self.latency.outermost {
            asm.if_to(Cond::Above, leave); // deeper than the outermost call
            asm.constant(B, durations.last(at::UNRETURNED));
            add_one(asm, self.machine);
            return asm.b(stamp);
        }
        asm.number(B, self.latency.functions);
        asm.compare(A, B);
        asm.if_to(Cond::Above, stamp); // not a number that stubs write
        // Counted on the last line of function A - 1: one stride further, and one line back.
        asm.constant(B, durations.stride());
        asm.constant(C, self.latency.area.wrapping_sub(words::STRIDE).wrapping_add(at::UNRETURNED));
        asm.mul_add(B, A, B, C);
        add_one(asm, self.machine);
        asm.b(stamp);
    }
}
