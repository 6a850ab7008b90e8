//! The code of the actions at a word, and the word that leads to it.
//!
//! In: actions, where counters, areas and rings lie. Out: stubs, and patched words. Does not: choose words or places.

mod actions;
pub(super) mod patch;
mod setting;

pub(super) use setting::Setting;
