//! Restartable sequences, whichever processor runs them: a section's words, and the area of a thread that announces it.
//!
//! In: where parts of a section lie, as they are emitted. Out: its descriptor's words. Each processor's `stub::rseq` has the
//! code. Does not: emit code.

/// `struct rseq`, field `cpu_id`: negative in a thread that is not registered.
pub(crate) const CPU_ID: i32 = 4;
/// `struct rseq`, field `rseq_cs`.
pub(crate) const RSEQ_CS: i32 = 8;

/// A section whose body follows. `F`: the instruction that loads the descriptor's address, which is not known yet.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Begun<F> {
    pub(crate) descriptor: F,
    /// Where it is announced.
    pub(crate) restart: u64,
    /// Where its body begins.
    pub(crate) start: u64,
}

/// A section without its descriptor, which is still to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<F> {
    begun: Begun<F>,
    end: u64,
}

impl<F> Begun<F> {
    /// The committing instruction was the last one before this address.
    pub(crate) fn end(self, end: u64) -> Section<F> {
        Section { begun: self, end }
    }
}

impl<F: Copy> Section<F> {
    /// Where it begins.
    pub(crate) const fn restart(&self) -> u64 {
        self.begun.restart
    }
    /// What waits for the descriptor's address.
    pub(crate) const fn fix(&self) -> F {
        self.begun.descriptor
    }
    /// The descriptor: version 0 and no flags, start, length, where an abort goes on.
    pub(crate) const fn descriptor(&self, abort: u64) -> [u64; 4] {
        let start = self.begun.start;
        [0, start, self.end - start, abort]
    }
}
