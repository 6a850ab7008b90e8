//! What a signal's action needs on x86-64: the address that its handler returns to.
//!
//! In: nothing. Out: an address and a flag.
//! Does not: install anything (`trap::signals`).

use core::arch::global_asm;

pub use crate::trap::signals::{DEFAULT, IGNORE, SignalAction, flags};
pub(crate) use crate::trap::signals::{MaskChange, action, mask, raise, set_action};

/// `SA_RESTORER`: the action contains the address that its handler returns to, which x86-64 requires.
pub(crate) const RESTORER: u64 = 0x0400_0000;

// The bytes are those of the usual C libraries: unwinders recognize a signal's frame by them.
global_asm!(
    ".pushsection .text.trapline_restorer, \"ax\", @progbits",
    ".hidden trapline_runtime_restorer",
    ".globl trapline_runtime_restorer",
    ".type trapline_runtime_restorer, @function",
    ".balign 16",
    "nop",
    "trapline_runtime_restorer:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0", // mov rax, 15
    "syscall",
    ".size trapline_runtime_restorer, . - trapline_runtime_restorer",
    ".popsection",
);

unsafe extern "C" {
    fn trapline_runtime_restorer();
}

/// The address that our handlers return to: rt_sigreturn.
pub(crate) fn restorer() -> u64 {
    trapline_runtime_restorer as *const () as u64
}
