//! What `top` asks for.
//!
//! In: plain values. Out: [`Top`]. Does not: draw.

use super::run::Run;
use crate::top::view::Column;

/// `top`, ready.
#[derive(Debug)]
pub(crate) struct Top {
    /// What to trace and how to report it, with an interval.
    pub(crate) run: Run,
    /// Whether calls are timed.
    pub(crate) timed: bool,
    /// The column to sort by.
    pub(crate) sort: Column,
}
