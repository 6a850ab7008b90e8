//! A probe: a site (file, offset) with its consumers.

/// What a stub or a trap leads to. Its address is an immediate in generated code: it stays where it is, and is freed only after all
/// code that names it.
#[derive(Debug, Default)]
pub struct Probe {}
