//! A program's code, kept to be appended again.
//!
//! In: code that was just appended, with the jumps that leave it. Out: the same at another place. The code of a program
//! holds no address; but jumps neither cross nor end at multiples of 32 ([`Asm::unbroken`]), so the place must be as far
//! behind one. Does not: check what the code depends on.

use super::asm::{Asm, Fix};

/// Code, and the jumps that leave it.
#[derive(Clone, Debug)]
pub struct Piece {
    bytes: Vec<u8>,
    leave: Vec<Fix>,
}

impl Piece {
    /// Number of kinds of places.
    pub const PLACES: usize = 32;

    /// The kind of the place where code is appended next.
    #[must_use]
    pub fn place(asm: &Asm<'_>) -> usize {
        (asm.here() % Self::PLACES as u64) as usize
    }
    /// What was appended from the address `begin` on; nothing of `leave` is bound yet.
    #[must_use]
    pub fn since(asm: &Asm<'_>, begin: u64, leave: &[Fix]) -> Self {
        let begin = begin.wrapping_sub(asm.origin()) as usize;
        let leave = leave.iter().map(|fix| fix.moved(begin.wrapping_neg())).collect();
        Self { bytes: asm.since(begin).to_vec(), leave }
    }
    /// Appends it, at a place of the same kind.
    pub fn append(&self, asm: &mut Asm<'_>) -> Vec<Fix> {
        let begin = asm.here().wrapping_sub(asm.origin()) as usize;
        asm.raw(&self.bytes);
        self.leave.iter().map(|fix| fix.moved(begin)).collect()
    }
}
