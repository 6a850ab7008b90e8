//! One site of a timed function: the parts that its stubs are made of, and the code of an entry and an exit.
//!
//! In: addresses and sizes from the layout, what is dead. Out: the part of a stub before the displaced code, and the rare
//! paths behind it.
//!
//! | part | what it owns |
//! |---|---|
//! | [`Saves`] | the registers that the code overwrites |
//! | [`StampCell`] | the way to the call's stamp |
//! | [`DurationBlock`] | the results |
//! | [`Arming`] | the return trampoline, if the call gets one |

use trapline_record::latency::{self as words, at};

use super::super::asm::{Alu, Asm, Cond, Fix, Mem, R8, RAX, RDI, RDX, RSI};
use super::super::machine::{Liveness, Machine};
use super::area::Latency;
use super::armed::{Armed, Arming};
use super::record::{DurationBlock, Rare};
use super::saves::Saves;
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
    /// What is dead at the site.
    pub site: Liveness,
}

/// What is left to append behind the displaced code.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack: a box would cost more than the copy"
)]
pub(in super::super) enum LatencyTail {
    Enter {
        loop_entry: bool,
        occupied: Fix,
        stamp: u64,
        lookup: Lookup,
        leave: u64,
    },
    Armed(Arming, Armed),
    Exit {
        kind: ExitKind,
        lookup: Lookup,
        other: Fix,
        negative: Fix,
        clamped: u64,
        rare: Option<Rare>,
        leave: u64,
    },
}

/// Appends the whole stub of a conditional jump out of the function. `condition` is the low nibble of its
/// opcode, `target` is where it leads. The code that follows runs if the jump is not taken.
pub fn latency_exit_branch(out: &mut Vec<u8>, at: u64, timed: &Timed<'_>, condition: u8, target: u64) {
    let mut asm = Asm::new(out, at);
    let stay = asm.jcc_raw_later(condition ^ 1);
    let tail = timed.exit(&mut asm, ExitKind::Tail);
    asm.jmp(target);
    timed.finish(&mut asm, tail);
    asm.bind(stay);
}

impl Timed<'_> {
    const fn cell(&self) -> StampCell {
        StampCell::of(self.latency, self.function, self.site)
    }
    const fn saves(&self, at_end: bool) -> Saves {
        Saves::of(self.site, at_end, self.cell().keeps_s())
    }
    const fn durations(&self) -> DurationBlock {
        DurationBlock::of(self.machine, self.latency, self.function)
    }

    /// The part of an entry's stub that comes before the displaced code. With `loop_entry` the entry is also a
    /// branch target, so the first stamp of (function, S) is kept until the exit.
    pub(in super::super) fn enter(&self, asm: &mut Asm<'_>, loop_entry: bool) -> LatencyTail {
        let saves = self.saves(false);
        saves.enter(asm);
        let lookup = self.cell().lookup(asm);
        let occupied = asm.unbroken(|asm| {
            asm.alu_mem_imm(Alu::Cmp, Mem::At(RSI, 8), 0, false);
            asm.jcc_later(Cond::NotEqual)
        });
        let stamp = asm.here();
        asm.clock(RAX);
        if self.latency.outermost {
            asm.store(Mem::At(RSI, 8), R8);
        } else {
            asm.store_imm(Mem::At(RSI, 8), self.function as i32 + 1);
        }
        asm.store(Mem::At(RSI, 0), RAX);
        let leave = asm.here();
        saves.leave(asm);
        LatencyTail::Enter { loop_entry, occupied, stamp, lookup, leave }
    }

    /// The part of an exit's stub that comes before the `ret` or jump that leaves, right before which it has to
    /// lie.
    pub(in super::super) fn exit(&self, asm: &mut Asm<'_>, kind: ExitKind) -> LatencyTail {
        let (saves, cell, durations) = (self.saves(true), self.cell(), self.durations());
        saves.enter(asm);
        asm.clock(RAX);
        asm.mov(RDI, RAX);
        let lookup = cell.lookup(asm);
        let other = asm.unbroken(|asm| {
            cell.compare_owner(asm);
            asm.jcc_later(Cond::NotEqual)
        });
        let negative = asm.unbroken(|asm| {
            asm.alu_load(Alu::Sub, RDI, Mem::At(RSI, 0));
            asm.jcc_later(Cond::Below)
        });
        let clamped = asm.here();
        asm.store_imm(Mem::At(RSI, 8), 0);
        asm.mov_imm64(RSI, durations.at());
        let rare = durations.record(asm, Some(kind));
        let leave = asm.here();
        saves.leave(asm);
        LatencyTail::Exit { kind, lookup, other, negative, clamped, rare, leave }
    }

    /// The part of an entry's stub that puts a return trampoline into its stack word; `None` without trampolines.
    /// With `ahead` the trampoline leads on: see [`Arming::begin`].
    pub(in super::super) fn arm(&self, asm: &mut Asm<'_>, ahead: bool) -> Option<LatencyTail> {
        let arming = Arming::of(self.machine, self.latency, self.function, self.site)?;
        let armed = arming.begin(asm, ahead);
        Some(LatencyTail::Armed(arming, armed))
    }

    /// Appends the rare paths.
    pub(in super::super) fn finish(&self, asm: &mut Asm<'_>, tail: LatencyTail) {
        let (cell, durations) = (self.cell(), self.durations());
        match tail {
            LatencyTail::Enter { loop_entry, occupied, stamp, lookup, leave } => {
                self.occupied(asm, loop_entry, occupied, stamp, leave);
                cell.miss(asm, lookup, Claim::Yes, None, self.latency.missed, leave);
            }
            LatencyTail::Armed(arming, armed) => arming.finish(asm, armed),
            LatencyTail::Exit { kind, lookup, other, negative, clamped, rare, leave } => {
                asm.bind(negative);
                asm.add_one(durations.last(at::CLAMPED));
                asm.mov_imm32(RDI, 0);
                asm.jmp(clamped);
                asm.bind(other);
                if self.latency.outermost {
                    asm.jcc(Cond::Above, leave); // a deeper call than the one that is timed
                }
                let unpaired = asm.jmp_later();
                cell.miss(asm, lookup, Claim::No, Some(unpaired), durations.last(at::UNPAIRED), leave);
                if let Some(rare) = rare {
                    durations.record_rare(asm, rare, Some(kind));
                }
            }
        }
    }

    /// The path of an entry that finds a stamp in its cell.
    fn occupied(&self, asm: &mut Asm<'_>, loop_entry: bool, from: Fix, stamp: u64, leave: u64) {
        let durations = self.durations();
        asm.bind(from);
        self.cell().compare_owner(asm);
        if loop_entry {
            asm.jcc(Cond::Equal, leave); // the first stamp is kept
        }
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // deeper than the outermost call
            asm.add_one(durations.last(at::UNRETURNED));
        } else {
            asm.load(RAX, Mem::At(RSI, 8));
            asm.alu_imm(Alu::Cmp, RAX, self.latency.functions as i32, true);
            asm.jcc(Cond::Above, stamp); // not a number that stubs write
            asm.imul_imm(RAX, RAX, durations.stride(), true);
            asm.mov_imm64(RDX, self.latency.area.wrapping_sub(words::STRIDE));
            asm.alu_mem_imm(Alu::Add, Mem::Sum(RDX, RAX, 0, at::UNRETURNED as i32), 1, true);
        }
        asm.jmp(stamp);
    }
}
