//! x86-64: a data breakpoint traps behind the access, and the sample has the registers that the access left.
//!
//! In: samples' registers, code. Out: which instruction it was, and what it did. Does not: read memory.

pub mod site;

use trapline_insn::effect::Effect;
pub(crate) use trapline_insn::x86_64::Accessor;
pub(crate) use trapline_insn::x86_64::RegFile;

use crate::constraints::DebugRegisters;
use crate::trap_state::UserRegs;
use crate::value::Range;

/// Every debug register takes breakpoints of either kind.
pub(crate) const DEBUG_REGISTERS: DebugRegisters =
    DebugRegisters::Shared(trapline_tracee::perf::DEBUG_REGISTERS);
/// A sample is taken after the access.
pub(crate) const TRAPS_BEFORE: bool = false;
/// The kernel's own accesses for a program trap too.
pub(crate) const SEES_KERNEL: bool = true;

/// Registers in a sample, in the order of their bits (`perf_regs.h`): ax bx cx dx si di bp sp ip flags,
/// r8…r15.
pub(crate) const REGISTERS: usize = 18;
/// The hardware numbers of the first eight.
const LEGACY: [usize; 8] = [0, 3, 1, 2, 6, 7, 5, 4];

pub(crate) fn user_regs(sampled: &[u64; REGISTERS]) -> UserRegs {
    let mut regs = UserRegs { ip: sampled[8], ..UserRegs::default() };
    for (number, value) in LEGACY.into_iter().zip(sampled) {
        regs.file.gprs[number] = *value;
    }
    regs.file.flags = sampled[9];
    regs.file.gprs[8..].copy_from_slice(&sampled[10..]);
    regs
}

/// What a candidate did to these bytes.
pub(crate) fn effect(one: &Accessor, regs: &UserRegs, _: Range) -> Effect {
    one.effect(&regs.file)
}

/// The whole access of a candidate.
pub(crate) fn whole(one: &Accessor, regs: &UserRegs) -> Effect {
    one.effect(&regs.file)
}

/// Whether a call pushed its return address into these bytes. The call itself is no longer at the sampled
/// address.
pub(crate) const fn has_pushed(regs: &UserRegs, range: Range) -> bool {
    regs.file.gprs[4] == range.addr && range.len == 8
}

/// Whether the program can never get past the instruction while that traps.
pub(crate) const fn never_ends(_: &Accessor) -> bool {
    false
}

/// Checks registers that came as 100…117.
#[cfg(test)]
pub(crate) fn check_registers(regs: UserRegs) {
    assert_eq!(regs.file.gprs[..8], [100, 102, 103, 101, 107, 106, 104, 105]);
    assert_eq!((regs.ip, regs.file.flags, regs.file.gprs[8], regs.file.gprs[15]), (108, 109, 110, 117));
}
