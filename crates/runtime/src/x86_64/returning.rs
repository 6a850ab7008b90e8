//! Where a call's return address is: in the word that the stack pointer points to.
//!
//! In: registers at a function's first instruction, or after a call has returned to its trampoline. Out: the
//! content of that word, or another address written to it.
//! Does not: choose one (`trampolines`).
//!
//! ```text
//!   return address = [rsp]
//! ```

use core::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};

use super::Regs;

/// # Safety
/// The stack pointer points to the word of a call that has just begun, or that is just over, in this thread.
pub(crate) unsafe fn address(regs: &Regs) -> u64 {
    // SAFETY: the caller promises it.
    unsafe { word(regs) }.load(Relaxed)
}

/// Writes another address to the word. Always true.
///
/// # Safety
/// As [`address`].
pub(crate) unsafe fn replace(regs: &mut Regs, to: u64) -> bool {
    // SAFETY: the caller promises it.
    unsafe { word(regs) }.store(to, Release);
    true
}

/// # Safety
/// As for [`address`]; the word is aligned, since a call pushed it.
unsafe fn word(regs: &Regs) -> &AtomicU64 {
    // SAFETY: the caller promises it.
    unsafe { &*(regs.sp() as *const AtomicU64) }
}
