//! Where a call's return address is: in the word that the stack pointer points to.
//!
//! In: registers at a function's first instruction, or where a call has come back to its slot. Out: what is in that word, or another in its place. Does not: choose one (`slots`).

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use super::Regs;

/// # Safety
/// The stack pointer points to the word of a call that has just begun, or that is just over, in this thread.
pub(crate) unsafe fn address(regs: &Regs) -> u64 {
    // SAFETY: the caller's.
    unsafe { word(regs) }.load(Relaxed)
}

/// Puts another there. True.
///
/// # Safety
/// As [`address`].
pub(crate) unsafe fn replace(regs: &mut Regs, to: u64) -> bool {
    // SAFETY: the caller's.
    unsafe { word(regs) }.store(to, Release);
    true
}

/// # Safety
/// As [`address`]; it is aligned, since a call pushed it.
unsafe fn word(regs: &Regs) -> &AtomicU64 {
    // SAFETY: the caller's.
    unsafe { &*(regs.sp() as *const AtomicU64) }
}
