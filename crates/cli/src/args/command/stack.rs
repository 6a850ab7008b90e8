//! What `stack` asks for.
//!
//! In: plain values. Out: [`Stacks`]. Does not: unwind.

use trapline::Unwinding;
use trapline::filter::Filter;

use super::run::{Ends, Run};

/// `stack`, ready.
#[derive(Debug)]
pub(crate) struct Stacks {
    /// What to trace and how to report it.
    pub(crate) run: Run,
    /// How callers are found.
    pub(crate) unwinding: Unwinding,
    /// Whether durations are summed instead of calls.
    pub(crate) time: bool,
    /// The most stacks that are printed as text.
    pub(crate) top: usize,
    /// The filter of each probe.
    pub(crate) filters: Vec<Filter>,
    /// How the ends of calls are seen, if durations are summed.
    pub(crate) ends: Ends,
}
