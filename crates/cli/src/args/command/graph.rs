//! What `graph` asks for.
//!
//! In: plain values. Out: [`Graph`]. Does not: put calls together.

use trapline::ProbeSpec;

use super::run::{Ends, Run};

/// `graph`, ready.
#[derive(Debug)]
pub(crate) struct Graph {
    /// What to trace and how to report it: the root, and the functions below it.
    pub(crate) run: Run,
    /// The function at the root of each tree.
    pub(crate) root: ProbeSpec,
    /// How the ends of calls are seen.
    pub(crate) ends: Ends,
    /// Whether each call is printed by itself.
    pub(crate) each: bool,
    /// The number of levels below the root.
    pub(crate) depth: usize,
}
