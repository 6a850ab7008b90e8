//! What may be written while threads run, as values. Each processor's `cpu` says what is proven.

/// What may be written while threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Proven {
    /// One word of eight bytes anywhere inside a line.
    pub(crate) words: bool,
    /// Any number of aligned words inside a page.
    pub(crate) runs: bool,
}

/// A word alone.
pub(crate) const WORDS: Proven = Proven { words: true, runs: false };
