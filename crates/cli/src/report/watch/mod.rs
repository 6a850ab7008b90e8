//! Reports of `watch`: a line for each access, a table of writers, a summary; or the same as JSON.
//!
//! In: accesses. Out: text. Does not: arm, or print.

pub(crate) mod json;
pub(crate) mod lines;
#[cfg(test)]
mod samples;
pub(crate) mod summary;
pub(crate) mod tally;
mod value;
mod words;
