//! A signal's action as a value.
//!
//! Input: the kernel's 32 bytes, or fields. Output: the other of the two. Does not: make the call that reads or
//! sets it.

/// A signal action, as rt_sigaction takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handler {
    /// Address of the function; 0 for the default action, 1 for ignoring the signal.
    pub handler: u64,
    /// SA_ flags.
    pub flags: u64,
    /// Restorer address.
    pub restorer: u64,
    /// Mask, signal `n` at bit `n − 1`.
    pub mask: u64,
}

impl Handler {
    pub(crate) fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.handler, self.flags, self.restorer, self.mask];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Self {
        let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |w, &b| w << 8 | u64::from(b));
        Self { handler: word(0), flags: word(8), restorer: word(16), mask: word(24) }
    }
}
