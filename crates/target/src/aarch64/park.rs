//! Instructions that hold a program at its entry point.

/// `b .`
pub(crate) const LOOP: [u8; 4] = [0x00, 0x00, 0x00, 0x14];
/// `brk #0`
pub(crate) const TRAP: [u8; 4] = [0x00, 0x00, 0x20, 0xd4];
/// How far behind the trap's address a thread stands that took it.
pub(crate) const BEHIND: u64 = 0;
/// The kernel steps a thread over the instruction of such a breakpoint; whether it then still stands before it was not tried.
pub(crate) const IS_HELD: bool = false;
