//! Tokens → tree, by recursive descent.
//!
//! In: a source. Out: a tree, or the first error. Does not: know types, names or functions.

mod blocks;
mod definitions;
mod expressions;
mod parser;
mod top;
mod types;

pub(crate) use parser::Parser;
