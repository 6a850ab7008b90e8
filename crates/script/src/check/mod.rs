//! Tree → program: names, types, sizes.
//!
//! In: a tree and the options. Out: a [`Program`](crate::program::Program) with warnings, or errors. Types are found by
//! going through the script until nothing grows: a variable's type holds all that is assigned to it, anywhere.
//! Does not: run anything.

mod access;
mod addresses;
mod arguments;
mod casts;
mod checker;
mod compile;
mod expressions;
mod functions;
mod lower;
mod macros;
mod operators;
mod options;
mod params;
mod parts;
mod recorded;
mod special;
mod statements;
mod sums;

pub use compile::{Compiled, compile};
pub(crate) use functions::MOST_FRAMES;
pub use options::Options;
