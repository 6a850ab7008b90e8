//! Blocks that a target can run itself, and what they left in maps there.
//!
//! In: a program. Out: which blocks those are ([`Natives`]); each one's operations, given to an [`Emit`]. And the
//! other way: what was added up or assigned in a target is put into the maps of a [`Machine`](crate::Machine).
//! Invariant SCR-5: what a block leaves in maps by its operations is what the interpreter leaves.
//!
//! Three kinds of maps are changed there:
//!
//! - added up: `count sum avg stats hist lhist`. Hits add, and nothing else; what the target adds is added to the tracer's map
//!   too. So blocks of the tracer may do with it what they like.
//! - extremes: `min max`. The same, but nobody empties them.
//! - assigned: plain values. Hits assign, read and delete. The tracer has a copy, which its blocks may read; only those at
//!   `end` may change it. A map whose key has `tid`, and whose values are one word, belongs to threads; all threads change
//!   the others.
//!
//! Invariant: NAT-1 a map is the target's only if all blocks of hits that name it run there: it has one owner.
//!
//! Does not: know machines or code.

mod adding;
mod emit;
mod fates;
mod grow;
mod keys;
mod lower;
mod maps;
mod said;
mod uses;

pub use emit::{Emit, Known};
pub use fates::{Beside, Fate, Natives};
pub use grow::KeyValue;
pub use lower::lower;
pub use maps::{Change, KeyWord, Length, Native, NativeMap, Not, Processes, TextOf};
