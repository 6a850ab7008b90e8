//! The registers of a thread at a trap.
//!
//! In: nothing. Out: a plain value, which the processors' modules fill. Does not: read samples (`record`).

use crate::native::RegFile;

/// The user's registers at a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserRegs {
    /// General registers.
    pub file: RegFile,
    /// Instruction pointer.
    pub ip: u64,
}
