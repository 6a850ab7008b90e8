//! What a timed stub saves, and where.
//!
//! In: what is dead at the site, what the stub overwrites. Out: code that saves that, and loads it again.
//! Invariant: STUB-1.
//!
//! What is saved lies below the stack pointer, which kernel and language runtimes leave alone (the psABI red
//! zone):
//!
//! ```text
//!   rsp - 80   save::REAL    trampolines: where the code behind them jumps to;  common code: where it goes on
//!   rsp - 72   save::R10     r10, while a cell is searched for
//!   rsp - 64   save::R9      r9, the same;  armed, by a tail call: r8
//!   rsp - 56   save::R8      r8, if S is kept there (`keeps_s`);  trampolines: while a free one is searched for
//!   rsp - 48   save::RDI     rdi, at exits and where a call is armed
//!   rsp - 40   save::RCX     rcx, the same
//!   rsp - 32   save::RSI     rsi
//!   rsp - 24   save::RDX     rdx
//!   rsp - 16   save::FLAGS   flags, 4 bytes
//!   rsp - 8    save::RAX     rax
//!   rsp        = S - RED_ZONE if the function's own red zone may be live, else S
//!   S          stack pointer at the function's entry, and again when its `ret` or tail jump is about to run
//! ```

use super::super::asm::{Asm, Mem, R8, RAX, RCX, RDI, RDX, RSI, RSP, Reg};
use super::super::machine::Liveness;

/// Offsets of the saves from rsp in the stub; the picture above.
pub(super) mod save {
    pub(in super::super) const RAX: i32 = -8;
    pub(in super::super) const FLAGS: i32 = -16;
    pub(in super::super) const RDX: i32 = -24;
    pub(in super::super) const RSI: i32 = -32;
    pub(in super::super) const RCX: i32 = -40;
    pub(in super::super) const RDI: i32 = -48;
    pub(in super::super) const R8: i32 = -56;
    pub(in super::super) const R9: i32 = -64;
    pub(in super::super) const R10: i32 = -72;
    pub(in super::super) const REAL: i32 = -80;
}
const RED_ZONE: i32 = 128;

pub(super) fn spill(asm: &mut Asm<'_>, at: i32, reg: Reg) {
    asm.store(Mem::At(RSP, at), reg);
}

pub(super) fn reload(asm: &mut Asm<'_>, reg: Reg, at: i32) {
    asm.load(reg, Mem::At(RSP, at));
}

/// Bytes from the stub's stack pointer to S.
pub(super) const fn skipped(site: Liveness) -> i32 {
    if site.red_zone_live { RED_ZONE } else { 0 }
}

/// The registers that one stub saves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saves {
    site: Liveness,
    /// At an exit, and where a call is armed: rcx and rdi too.
    at_end: bool,
    /// r8 too, which keeps S.
    keeps_s: bool,
}

impl Saves {
    pub(super) const fn of(site: Liveness, at_end: bool, keeps_s: bool) -> Self {
        Self { site, at_end, keeps_s }
    }
    /// Bytes from the stub's stack pointer to S.
    pub(super) const fn skipped(&self) -> i32 {
        skipped(self.site)
    }
    fn saved(&self) -> impl Iterator<Item = (Reg, i32)> {
        let site = self.site;
        let also =
            [(self.at_end, RCX, save::RCX), (self.at_end, RDI, save::RDI), (self.keeps_s, R8, save::R8)];
        [(true, RDX, save::RDX), (true, RSI, save::RSI)]
            .into_iter()
            .chain(also)
            .filter(move |(used, reg, _)| *used && site.dead >> reg.0 & 1 == 0)
            .map(|(_, reg, at)| (reg, at))
    }
    pub(super) fn enter(&self, asm: &mut Asm<'_>) {
        self.step_down(asm);
        self.save(asm, &[]);
    }
    /// Leaves the program's red zone alone.
    pub(super) fn step_down(&self, asm: &mut Asm<'_>) {
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, -RED_ZONE));
        }
    }
    pub(super) fn step_up(&self, asm: &mut Asm<'_>) {
        if self.site.red_zone_live {
            asm.lea(RSP, Mem::At(RSP, RED_ZONE));
        }
    }
    /// Saves all but what is saved already.
    pub(super) fn save(&self, asm: &mut Asm<'_>, already: &[Reg]) {
        if self.site.dead & 1 == 0 {
            spill(asm, save::RAX, RAX);
        }
        if !self.site.flags_dead {
            asm.flags_to_rax();
            asm.store32(Mem::At(RSP, save::FLAGS), RAX);
        }
        for (reg, at) in self.saved().filter(|(reg, _)| !already.contains(reg)) {
            spill(asm, at, reg);
        }
    }
    pub(super) fn leave(&self, asm: &mut Asm<'_>) {
        self.load(asm);
        self.step_up(asm);
    }
    pub(super) fn load(&self, asm: &mut Asm<'_>) {
        if !self.site.flags_dead {
            asm.load32(RAX, Mem::At(RSP, save::FLAGS));
            asm.flags_from_rax();
        }
        for (reg, at) in self.saved() {
            reload(asm, reg, at);
        }
        if self.site.dead & 1 == 0 {
            reload(asm, RAX, save::RAX);
        }
    }
}
