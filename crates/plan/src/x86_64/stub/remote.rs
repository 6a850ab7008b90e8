//! The code that a remote call runs if the target has no such sequence of its own.

/// `syscall`, then `rt_sigreturn` of the frame that rsp points to: the thread restores itself.
#[must_use]
pub const fn remote_sequence() -> [u8; 9] {
    [0x0F, 0x05, 0xB8, 0x0F, 0x00, 0x00, 0x00, 0x0F, 0x05]
}
