//! One site of a timed function: the parts that its stubs are made of, and the code of an entry and an exit.
//!
//! In: addresses and sizes from the layout, what is dead, where the code lies that sites share ([`SharedTimed`]). Out: the
//! part of a stub before the displaced code, and the rare paths behind it.
//!
//! | part | what it owns |
//! |---|---|
//! | [`Saves`] | the registers that the code overwrites |
//! | [`StampCell`] | the way to the call's stamp |
//! | [`Arming`] | the return trampoline, if the call gets one |

use super::super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RCX, RDI, RDX, RSI};
use super::super::machine::{Liveness, Machine};
use super::area::Latency;
use super::armed::{Armed, Arming};
use super::saves::{Saves, save, spill};
use super::shared::SharedTimed;
use super::stamp_cell::{Lookup, StampCell, owner};

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
    Enter { occupied: Fix, lookup: Lookup, leave: u64, rare: u64 },
    Armed(Arming, Armed),
}

impl Timed<'_> {
    const fn cell(&self) -> StampCell {
        StampCell::of(self.latency, self.function, self.site)
    }
    const fn saves(&self, at_end: bool) -> Saves {
        Saves::of(self.site, at_end, self.cell().keeps_s())
    }

    /// The part of an entry's stub that comes before the displaced code. The code for what is rare lies at `rare`: it is
    /// [`SharedTimed::Entry`].
    pub(in super::super) fn enter(&self, asm: &mut Asm<'_>, rare: u64) -> LatencyTail {
        let (saves, cell) = (self.saves(false), self.cell());
        saves.enter(asm);
        let lookup = cell.lookup(asm);
        let occupied = asm.unbroken(|asm| {
            asm.alu_mem_imm(Alu::Cmp, Mem::At(RSI, 8), 0, false);
            asm.jcc_later(Cond::NotEqual)
        });
        asm.clock(RAX);
        cell.store_owner(asm);
        asm.store(Mem::At(RSI, 0), RAX);
        let leave = asm.here();
        saves.leave(asm);
        LatencyTail::Enter { occupied, lookup, leave, rare }
    }

    /// An exit's stub, right before the `ret` or jump that leaves. The code at `code` is `which`, a [`SharedTimed::Exit`]. If
    /// that one returns, nothing behind the stub runs.
    pub(in super::super) fn exit(&self, asm: &mut Asm<'_>, (which, code): (SharedTimed, u64)) {
        let saves = self.saves(true);
        saves.step_down(asm);
        spill(asm, save::RCX, RCX);
        if let SharedTimed::Exit { returns: true, .. } = which {
            asm.mov_imm32(RCX, owner(self.function) as u32);
            asm.jmp(code);
            return;
        }
        spill(asm, save::RDI, RDI);
        asm.mov_imm32(RCX, owner(self.function) as u32);
        let on = asm.lea_later(RDI);
        asm.jmp(code);
        asm.bind(on);
        saves.step_up(asm);
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
        match tail {
            LatencyTail::Enter { occupied, lookup, leave, rare } => {
                asm.bind(occupied);
                lookup.bind(asm);
                asm.mov_imm32(RDX, owner(self.function) as u32);
                asm.lea(RSI, Mem::Rip(leave));
                asm.jmp(rare);
            }
            LatencyTail::Armed(arming, armed) => arming.finish(asm, armed),
        }
    }
}
