//! Where a call's return address is: in x30.
//!
//! In: registers at a function's first instruction, before it could sign or store x30, or after a call has
//! returned to its trampoline. Out: the content of that register, or another address written to it. The
//! thread gets it as soon as its registers are loaded again.
//! Does not: choose one (`trampolines`).

use trapline_insn::aarch64::Gpr;

use super::Regs;

/// # Safety
/// None is required here; x86-64's reads memory.
pub(crate) unsafe fn address(regs: &Regs) -> u64 {
    regs.get(Gpr::X30)
}

/// Writes another address to x30. Always true.
///
/// # Safety
/// The registers are those of a call that has just begun, or that is just over, in this thread.
pub(crate) unsafe fn replace(regs: &mut Regs, to: u64) -> bool {
    regs.set(Gpr::X30, to);
    true
}
