//! arm64: a watchpoint traps before the access, and the sample has the registers that the instruction finds.
//! The kernel then steps over the instruction.
//!
//! In: samples' registers, code. Out: which instruction it is, and what it will do. Does not: read memory.
//!
//! So no operand is lost, and the instruction is the one at the sample's address. But a thread may be kept
//! waiting between its sample and its store for any time. Which of several threads' accesses was first is
//! known only once each has been sampled again (`watching::access`).
//!
//! An exclusive store that traps fails, because the return from the trap ends the exclusive state that its
//! load began (Arm ARM B2.12). Its program then tries again for ever, so the watch must end ([`never_ends`]).
//! Atomic operations by one instruction (FEAT_LSE) are not affected.
//!
//! If one instruction touches several watched places, the kernel reports one of them (its
//! `watchpoint_handler` looks for the closest). So what is known of the others is doubted then.

pub mod site;

pub(crate) use trapline_insn::aarch64::Accessor;
pub(crate) use trapline_insn::aarch64::Regs as RegFile;
use trapline_insn::effect::Effect;

use crate::constraints::DebugRegisters;
use crate::trap_state::UserRegs;
use crate::value::Range;

/// The counts of most processors. Where there are fewer, the kernel reports it.
pub(crate) const DEBUG_REGISTERS: DebugRegisters =
    DebugRegisters::Apart { data: trapline_tracee::perf::DEBUG_REGISTERS, instruction: 6 };
/// A sample is taken before the access.
pub(crate) const TRAPS_BEFORE: bool = true;
/// The kernel skips its own accesses for a program (hw_breakpoint.c of arm64).
pub(crate) const SEES_KERNEL: bool = false;

/// Registers in a sample, in the order of their bits (`perf_regs.h`): x0 to x30, sp, pc.
pub(crate) const REGISTERS: usize = 33;

pub(crate) fn user_regs(sampled: &[u64; REGISTERS]) -> UserRegs {
    let mut regs = UserRegs { ip: sampled[32], ..UserRegs::default() };
    regs.file.x.copy_from_slice(&sampled[..31]);
    (regs.file.sp, regs.file.pc) = (sampled[31], sampled[32]);
    regs
}

/// What a candidate is about to do to these bytes.
pub(crate) fn effect(one: &Accessor, regs: &UserRegs, range: Range) -> Effect {
    one.effect(&regs.file, range.addr, range.len)
}

/// The whole access that a candidate is about to make.
pub(crate) fn whole(one: &Accessor, regs: &UserRegs) -> Effect {
    one.effect(&regs.file, 0, u8::MAX)
}

/// Never here: an instruction that stores is still at the sampled address.
pub(crate) const fn has_pushed(_: &UserRegs, _: Range) -> bool {
    false
}

/// Whether the program can never get past the instruction while that traps.
pub(crate) const fn never_ends(one: &Accessor) -> bool {
    one.is_exclusive()
}

/// Checks registers that came as 100…132.
#[cfg(test)]
pub(crate) fn check_registers(regs: UserRegs) {
    assert_eq!((regs.file.x[0], regs.file.x[30], regs.file.sp, regs.ip), (100, 130, 131, 132));
}
