//! What is known of a thread at a trap: its registers, and the code around it.
//!
//! In: nothing. Out: plain values, which the processors' modules fill and look at. Does not: read samples
//! (`record`).

use crate::native::RegFile;

/// The user's registers at a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserRegs {
    /// General registers.
    pub file: RegFile,
    /// Instruction pointer.
    pub ip: u64,
}

/// Code around an address.
#[derive(Clone, Copy, Debug)]
pub struct Code<'a> {
    /// The bytes of the code.
    pub bytes: &'a [u8],
    /// Address of the first.
    pub addr: u64,
    /// Whether the first byte begins an instruction.
    pub in_step: bool,
}
