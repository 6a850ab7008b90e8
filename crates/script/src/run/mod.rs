//! What a program means: an interpreter. Whatever compiles scripts must do the same.
//!
//! In: a program, hits, and a [`World`]. Out: output, and maps. Does not: call the system; what a script can learn or do
//! outside of its maps goes through the world.

mod calls;
mod eval;
mod frame;
mod machine;
mod maps;
mod memory;
mod output;
mod state;
mod steps;
mod texts;
mod totals;
mod world;

pub use machine::Machine;
pub use state::Style;
pub use totals::{Lost, Totals};
pub use world::{Clock, Hit, Stream, World};
