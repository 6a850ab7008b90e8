//! Code that the timed functions of a module share: their exits, and what is rare at their entries.
//!
//! In: what is timed, which code. Out: that code, correct at one address. A stub passes its function's number and jumps
//! here, so a stub is short, and many fit into the caches. Does not: choose the address.
//!
//! A stub that leads here has done this; rsp is the stub's (`saves`):
//!
//! ```text
//!   entry, rare      rax, flags, rdx, rsi (r8 if `keeps_s`) saved    rdx = function + 1    rsi = where it goes on
//!   exit, returns    rcx saved                                       rcx = function + 1
//!   exit, goes on    rcx, rdi saved                                  rcx = function + 1    rdi = where it goes on
//! ```
//!
//! An exit that `returns` stands right before a plain `ret`. The shared code then ends in a `ret`, with all registers as
//! they were. The processor predicts a `ret` by its stack of calls; it cannot predict a jump back to thousands of places.
//! All other code goes on by `jmp [rsp - 80]`. Exits load the saved registers before it, entries behind it.
//!
//! A thread may be stopped anywhere here: the code has no state but registers and the words below rsp, and its
//! restartable sequences have descriptors of their own. It lies in the module's code region, so it is unmapped when no
//! thread runs in that.

use trapline_record::latency::{self as words, at};

use super::super::asm::{Alu, Asm, Cond, Fix, Mem, RAX, RCX, RDI, RDX, RSI, RSP};
use super::super::machine::{Liveness, Machine};
use super::area::Latency;
use super::record::DurationBlock;
use super::saves::{Saves, reload, save, spill};
use super::stamp_cell::{Claim, Function, StampCell};
use crate::machine::ExitKind;

/// Which code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SharedTimed {
    /// What is rare at an entry: its cell is not at the first place, or has a stamp. `looped`: the entry is also a branch
    /// target, so the first stamp of (function, S) is kept until the exit.
    Entry {
        /// As in [`Liveness`].
        red_zone_live: bool,
        /// See above.
        looped: bool,
    },
    /// An exit.
    Exit {
        /// As what the exit is counted.
        kind: ExitKind,
        /// As in [`Liveness`].
        red_zone_live: bool,
        /// It stands before a plain `ret`.
        returns: bool,
    },
}

impl SharedTimed {
    const fn site(self) -> Liveness {
        let (Self::Entry { red_zone_live, .. } | Self::Exit { red_zone_live, .. }) = self;
        Liveness { flags_dead: false, dead: 0, red_zone_live }
    }
}

/// Appends the code, which starts at `at`.
pub fn shared_timed(out: &mut Vec<u8>, at: u64, machine: &Machine, latency: &Latency, which: SharedTimed) {
    let common = Common {
        latency,
        cell: StampCell::for_function(latency, Function::InRcx, which.site()),
        durations: DurationBlock::of_any(machine, latency),
    };
    let mut asm = Asm::new(out, at);
    match which {
        SharedTimed::Entry { looped, .. } => common.entry(&mut asm, looped),
        SharedTimed::Exit { kind, returns, .. } => common.exit(&mut asm, kind, returns, which.site()),
    }
}

struct Common<'a> {
    latency: &'a Latency,
    cell: StampCell,
    durations: DurationBlock,
}

impl Common<'_> {
    fn entry(&self, asm: &mut Asm<'_>, looped: bool) {
        spill(asm, save::REAL, RSI);
        spill(asm, save::RCX, RCX);
        asm.mov(RCX, RDX);
        let lookup = self.cell.lookup(asm);
        asm.alu_mem_imm(Alu::Cmp, Mem::At(RSI, 8), 0, false);
        let occupied = asm.jcc_later(Cond::NotEqual);
        let stamp = asm.here();
        asm.clock(RAX);
        self.cell.store_owner(asm);
        asm.store(Mem::At(RSI, 0), RAX);
        let leave = asm.here();
        reload(asm, RCX, save::RCX);
        asm.jmp_mem(Mem::At(RSP, save::REAL));
        self.occupied(asm, looped, occupied, (stamp, leave));
        self.cell.miss(asm, lookup, Claim::Yes);
        asm.add_one(self.latency.missed);
        asm.jmp(leave);
    }

    /// The path of an entry that finds a stamp in its cell.
    fn occupied(&self, asm: &mut Asm<'_>, looped: bool, from: Fix, (stamp, leave): (u64, u64)) {
        asm.bind(from);
        self.cell.compare_owner(asm);
        if looped {
            asm.jcc(Cond::Equal, leave); // the first stamp is kept
        }
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // deeper than the outermost call
            self.durations.add_one(asm, at::UNRETURNED);
        } else {
            asm.load(RAX, Mem::At(RSI, 8));
            asm.alu_imm(Alu::Cmp, RAX, self.latency.functions as i32, true);
            asm.jcc(Cond::Above, stamp); // not a number that stubs write
            asm.imul_imm(RAX, RAX, self.durations.stride(), true);
            asm.mov_imm64(RDX, self.latency.area.wrapping_sub(words::STRIDE));
            asm.alu_mem_imm(Alu::Add, Mem::Sum(RDX, RAX, 0, at::UNRETURNED as i32), 1, true);
        }
        asm.jmp(stamp);
    }

    fn exit(&self, asm: &mut Asm<'_>, kind: ExitKind, returns: bool, site: Liveness) {
        let (cell, durations) = (&self.cell, &self.durations);
        let saves = Saves::of(site, true, cell.keeps_s());
        if returns {
            saves.save(asm, &[RCX]);
        } else {
            spill(asm, save::REAL, RDI);
            saves.save(asm, &[RCX, RDI]);
        }
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
        durations.of_rcx(asm, RSI);
        let rare = durations.record(asm, Some(kind));
        let leave = asm.here();
        saves.load(asm);
        if returns {
            asm.ret();
        } else {
            asm.jmp_mem(Mem::At(RSP, save::REAL));
        }
        asm.bind(negative);
        durations.add_one(asm, at::CLAMPED);
        asm.mov_imm32(RDI, 0);
        asm.jmp(clamped);
        asm.bind(other);
        if self.latency.outermost {
            asm.jcc(Cond::Above, leave); // a deeper call than the one that is timed
        }
        let unpaired = asm.jmp_later();
        cell.miss(asm, lookup, Claim::No);
        asm.bind(unpaired);
        durations.add_one(asm, at::UNPAIRED);
        asm.jmp(leave);
        if let Some(rare) = rare {
            durations.record_rare(asm, rare, Some(kind));
        }
    }
}
