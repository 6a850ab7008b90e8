//! The code that a remote call runs if the target has no such sequence of its own.
//!
//! ```text
//!   in    rax = number; rdi, rsi, rdx, r10, r8, r9 = arguments
//!         rsp = a signal frame, behind its first word (`tracee`'s `frame`: return_sp)
//!   1     syscall                    rax = the result, where a tracer reads it
//!   2     eax = 15; syscall          rt_sigreturn: all registers from the frame
//! ```

/// `syscall`, then `rt_sigreturn` of the frame that rsp points to: the thread restores itself.
#[must_use]
pub const fn remote_sequence() -> [u8; 9] {
    [0x0F, 0x05, 0xB8, 0x0F, 0x00, 0x00, 0x00, 0x0F, 0x05]
}
