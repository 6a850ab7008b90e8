//! A program's code, kept to be appended again.
//!
//! In: code that was just appended, with the branches that leave it. Out: the same at another place. The code of a program
//! holds no address; its constants lie behind the stub ([`Asm::constant`]). Does not: check what the code depends on.

use super::asm::{Asm, Fix};

/// Code, its constants, and the branches that leave it.
#[derive(Clone, Debug)]
pub struct Piece {
    words: Vec<u32>,
    constants: Vec<(u64, Fix)>,
    leave: Vec<Fix>,
}

impl Piece {
    /// Number of kinds of places: all are alike.
    pub const PLACES: usize = 1;

    /// The kind of the place where code is appended next.
    #[must_use]
    pub const fn place(_: &Asm) -> usize {
        0
    }
    /// What was appended from the address `begin` on; nothing of `leave` is bound yet.
    #[must_use]
    pub fn since(asm: &Asm, begin: u64, leave: &[Fix]) -> Self {
        let begin = asm.number_of(begin);
        let back = |fix: &Fix| fix.moved(begin.wrapping_neg());
        let constants = asm.constants_since(begin).map(|(value, fix)| (value, back(&fix))).collect();
        Self { words: asm.since(begin).to_vec(), constants, leave: leave.iter().map(back).collect() }
    }
    /// Appends it.
    pub fn append(&self, asm: &mut Asm) -> Vec<Fix> {
        let begin = asm.number_of(asm.here());
        asm.extend(&self.words);
        self.constants.iter().for_each(|(value, fix)| asm.constant_at(*value, fix.moved(begin)));
        self.leave.iter().map(|fix| fix.moved(begin)).collect()
    }
}
