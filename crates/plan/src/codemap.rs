//! Which bytes of a module may be branched to, and where its padding is.

use crate::request::Want;
use trapline_image::Image;
use trapline_record::Svma;

/// Which functions a [`CodeMap`] covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope<'a> {
    /// All of the module's text.
    All,
    /// All if the text is at most 64 MiB, else what these wants need.
    For(&'a [Want]),
}

/// Possible branch targets of a module, and the padding between its functions.
#[derive(Clone, Debug)]
pub struct CodeMap {}

impl CodeMap {
    /// Sweeps the functions in scope with up to `threads` threads.
    #[must_use]
    pub fn build(image: &Image, scope: Scope<'_>, threads: usize) -> Self {
        let _ = (image, scope, threads);
        todo!()
    }
    /// Whether something may branch to `at`.
    #[must_use]
    pub fn is_target(&self, at: Svma) -> bool {
        let _ = at;
        todo!()
    }
}
