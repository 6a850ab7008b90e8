//! Programs as arm64 code, and the assembler that other generated code uses too.
//!
//! In: a program with locations; where inputs are; the stub's frame. Out: words. Does not: choose locations.

mod access;
mod arithmetic;
pub mod asm;
mod emit;
mod needs;
mod piece;

pub use emit::{Frame, Inputs, emit};
pub use needs::{REGISTERS, allocate, most_bytes};
pub use piece::Piece;
