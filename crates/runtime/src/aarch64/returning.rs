//! Where a call's return address is: in x30.
//!
//! In: registers at a function's first instruction, before it could sign or store x30, or where a call has come back to its slot. Out: what is in that register, or another in its place; it
//! is the thread's own as soon as the registers are given back. Does not: choose one (`slots`).

use trapline_insn::aarch64::Gpr;

use super::Regs;

/// # Safety
/// None is needed: the twin's reads memory.
pub(crate) unsafe fn address(regs: &Regs) -> u64 {
    regs.get(Gpr::X30)
}

/// Puts another there. True.
///
/// # Safety
/// The registers are those of a call that has just begun, or that is just over, in this thread.
pub(crate) unsafe fn replace(regs: &mut Regs, to: u64) -> bool {
    regs.set(Gpr::X30, to);
    true
}
