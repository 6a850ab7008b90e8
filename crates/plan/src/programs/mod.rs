//! What hits do, each written once, as operations of a program.
//!
//! In: what is asked for. Out: operations, which the compiler makes code of for both processors, and which the
//! interpreter runs. One file for each; its table of steps stands at its head. Does not: know registers, stacks or
//! processors.

mod adding;
mod bucket;
mod calls;
mod hash;
mod input;
mod kept;
pub(crate) mod maps;
pub(crate) mod packed;
mod pieces;
pub(crate) mod records;
mod rows;
mod search;
mod shared;
pub(crate) mod stacks;
mod sums;
mod text_key;
pub(crate) mod texts;

pub(crate) use adding::Adding;
pub(crate) use bucket::bucket;
pub(crate) use input::{KEY, OWNER, TABLE, TEXT};
pub(crate) use kept::Kept;
pub(crate) use pieces::Pieces;
pub(crate) use rows::Rows;
pub(crate) use text_key::text_key;
