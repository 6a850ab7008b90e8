//! What all stubs have in common: each waits for its displaced code, and is whole with it.
//!
//! In: the displaced words. Out: the words of the stub.

use super::asm::NoWords;

/// The code of a stub, which waits for its displaced code.
pub trait Code {
    /// Address at which the displaced code will run. The caller relocates it for that address.
    fn displaced_at(&self) -> u64;
    /// The whole stub, with the displaced code, and a branch `back` if that falls through.
    ///
    /// # Errors
    /// Something is out of reach, or the stub lacks code.
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Result<Vec<u32>, NoWords>;
}
