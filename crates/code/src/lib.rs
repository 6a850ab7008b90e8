//! What a hit computes: a small program, its meaning, and its machine code for both processors. Internal to Trapline.
//!
//! In: a program, made by a [`Builder`]; where its inputs are and which registers are free, from the stub around it.
//! Out: bytes, and the jumps by which the program is left; or what the interpreter says that it does.
//!
//! ```text
//!   front end ─▶ Builder ─▶ Program ─┬─▶ interpret                       what it means
//!                            verify  └─▶ allocate ─▶ x86_64 | aarch64    the same, as code
//! ```
//!
//! Invariants: CODE-1 code and [`interpret()`] agree, for all inputs. CODE-2 a program ends: it branches forward only,
//! and has at most [`MAX_OPS`] operations. CODE-3 no variable is read before it is written, on any path. CODE-4 code
//! changes the registers, spill words and flags that it was given, and nothing else.
//!
//! Does not: know probes, processes or memory layouts; load or store through pointers; run anything.
//! docs/design/compiler.md has the reasons.
#![forbid(unsafe_code)]

pub mod aarch64;
mod allocate;
mod build;
mod interpret;
mod print;
mod program;
mod verify;
mod walk;
pub mod x86_64;

pub use allocate::{Allocated, Location, NoRoom, Pool};
pub use build::{Builder, Value};
pub use interpret::{End, interpret};
pub use program::{Compare, Compute, Label, MAX_OPS, Op, Operand, Program, Target, Unary, Var, Width};
pub use verify::Unsound;
