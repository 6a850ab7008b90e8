//! arm64: a watchpoint traps before the access, with the registers that the instruction finds; the kernel then steps over it.
//!
//! In: samples' registers, code. Out: which instruction it is, and what it will do. Does not: read.
//!
//! So no operand is lost, and the instruction is the one that the sample names. But between its sample and its store a thread may be kept waiting for any
//! time: of accesses by several threads, which was first is known only once each has been sampled again (`watching::access`).
//! An exclusive store that traps fails, as the return from the trap ends what its load began (Arm ARM B2.12), and its program tries again for ever: whoever
//! watches must let go ([`never_ends`]). Of several watched places that one instruction touches, the kernel tells one (its `watchpoint_handler` looks
//! for the closest), so what is known of the others is doubted then.
//! What is atomic by one instruction (FEAT_LSE) is not concerned.

pub mod site;

pub(crate) use trapline_insn::aarch64::Accessor;
pub(crate) use trapline_insn::aarch64::Regs as RegFile;
use trapline_insn::effect::Effect;

use crate::constraints::Slots;
use crate::record::UserRegs;
use crate::value::Range;

/// As most processors have it; where there are fewer, the kernel says so.
pub(crate) const SLOTS: Slots = Slots::Apart { data: trapline_target::perf::SLOTS, instruction: 6 };
/// A sample is taken when the access is still to be made.
pub(crate) const TRAPS_BEFORE: bool = true;
/// The kernel passes over its own accesses for a program (hw_breakpoint.c of arm64).
pub(crate) const SEES_KERNEL: bool = false;

/// Registers in a sample, in the order of their bits (`perf_regs.h`): x0 to x30, sp, pc.
pub(crate) const REGISTERS: usize = 33;

pub(crate) fn user_regs(sampled: &[u64; REGISTERS]) -> UserRegs {
    let mut regs = UserRegs { ip: sampled[32], ..UserRegs::default() };
    regs.file.x.copy_from_slice(&sampled[..31]);
    (regs.file.sp, regs.file.pc) = (sampled[31], sampled[32]);
    regs
}

/// What a candidate is about to do, to these bytes.
pub(crate) fn effect(one: &Accessor, regs: &UserRegs, range: Range) -> Effect {
    one.effect(&regs.file, range.addr, range.len)
}

/// All that a candidate is about to access.
pub(crate) fn whole(one: &Accessor, regs: &UserRegs) -> Effect {
    one.effect(&regs.file, 0, u8::MAX)
}

/// No instruction is gone that stored.
pub(crate) const fn has_pushed(_: &UserRegs, _: Range) -> bool {
    false
}

/// Whether its program can never get past it while it traps.
pub(crate) const fn never_ends(one: &Accessor) -> bool {
    one.is_exclusive()
}
