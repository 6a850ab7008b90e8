//! Blocks that a target can run itself, and what they left in maps there.
//!
//! In: a program. Out: which maps its hits change, and each block's operations, given to an [`Emit`]; or why a target cannot run
//! it. And the other way: what was added up or assigned in a target is put into the maps of a [`Machine`](crate::Machine).
//! Invariant SCR-5: what a block leaves in maps by its operations is what the interpreter leaves.
//!
//! A program is run in the target as a whole, or not at all: maps would differ otherwise. Two kinds of maps are changed there:
//!
//! - added up: `count sum avg stats hist lhist`. Hits add, and nothing else; what the target adds is added to the tracer's map
//!   too. So blocks of the tracer may do with it what they like.
//! - of a thread: the key has `tid` in it, and values are numbers. Hits assign, read and delete. The tracer has a copy, which its
//!   blocks may read; only those at `end` may change it.
//!
//! Does not: know machines or code.

mod emit;
mod grow;
mod lower;
mod maps;

pub use emit::{Compare, Compute, Emit, Known, Unary};
pub use grow::KeyValue;
pub use lower::lower;
pub use maps::{KeyWord, Native, NativeMap, Not, native};
