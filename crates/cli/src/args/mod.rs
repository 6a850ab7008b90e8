//! Arguments in three parts: [`typed`] is the command line as clap reads it, [`command`] is what it asks for,
//! and [`ready`] makes the second from the first. [`kept`] keeps a part of it in recordings.
//!
//! [`command`] is the ground floor: it uses neither of the others, and the rest of the program uses it.

pub(crate) mod command;
pub(crate) mod kept;
pub(crate) mod ready;
pub(crate) mod typed;

pub(crate) use command::{aggregation, graph, hist, otlp, serve, sink, stack, top, types};
pub(crate) use ready::{error, fields, filters};
