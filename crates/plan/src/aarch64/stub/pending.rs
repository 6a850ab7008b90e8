//! What all stubs have in common: each waits for its displaced code, and is whole with it.
//!
//! In: the displaced words. Out: the words of the stub.

/// The code of a stub, which waits for its displaced code.
pub trait Code {
    /// Address at which the displaced code will run. The caller relocates it for that address.
    fn displaced_at(&self) -> u64;
    /// The whole stub, with the displaced code, and a branch `back` if that falls through. `None` if this is
    /// out of reach.
    fn finish(self, displaced: &[u32], back: Option<u64>) -> Option<Vec<u32>>;
}
