//! Which blocks the target can count by itself, and as what.
//!
//! In: a checked program, and which blocks share functions. Out: a [`Fate`](crate::Fate) for each block. A block that only adds to
//! maps by what the target knows at the hit is counted there, in tables; no record is written for it. Every other one is
//! interpreted. Invariants: LOW-1: see `word`. LOW-2 a map is counted in the target only if each block of hits that names
//! it is, so that its rows come from one side. Does not: know how tables are laid out.

mod block;
mod expression;
mod fates;
mod uses;

pub use fates::{awaited, fates};
