//! Arguments in two stages: [`typed`] is what was typed, [`command`] is its meaning; [`ready`] checks and
//! converts.

pub(crate) mod aggregation;
pub(crate) mod command;
pub(crate) mod ends;
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod filters;
pub(crate) mod graph;
pub(crate) mod hist;
pub(crate) mod kept;
pub(crate) mod otlp;
pub(crate) mod prototype;
pub(crate) mod ready;
pub(crate) mod serve;
pub(crate) mod signature;
pub(crate) mod sink;
pub(crate) mod stack;
pub(crate) mod threads;
pub(crate) mod top;
pub(crate) mod typed;
pub(crate) mod types;
pub(crate) mod units;
mod words;
