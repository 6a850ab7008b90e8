//! Instructions that hold a program at its entry point.

/// `jmp .`
pub(crate) const LOOP: [u8; 2] = [0xeb, 0xfe];
/// `int3`
pub(crate) const TRAP: [u8; 1] = [0xcc];
/// How far behind the trap's address a thread stands that took it.
pub(crate) const BEHIND: u64 = 1;
/// A breakpoint of the processor for an instruction holds a thread before it.
pub(crate) const IS_HELD: bool = true;
