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
//! but for walks with a constant number of steps, and has at most [`MAX_OPS`] operations. CODE-3 no variable is read
//! before it is written, on any path. CODE-4 code changes the registers, spill words and flags that it was given, and
//! nothing else but what its program stores. CODE-5 a program stores only where its kind of memory allows it, and a
//! commit is its last step and its only store to that word.
//!
//! Does not: know probes, processes or memory layouts; run anything.
//! docs/design/compiler.md has the reasons.
#![forbid(unsafe_code)]

pub mod aarch64;
mod allocate;
mod build;
mod compute;
mod interpret;
mod operand;
mod print;
mod program;
mod unsound;
mod verify;
mod walk;
pub mod x86_64;

pub use allocate::{Allocated, Location, NoRoom};
pub use build::{Builder, Value};
pub use compute::{Compare, Compute, Unary, Width};
pub use interpret::{Bytes, End, Run, interpret, interpret_in};
pub use operand::{Label, Memory, Operand, Place, Target, Var, Walk};
pub use program::{CLAIMED, Commit, MAX_OPS, MAX_STEPS, Op, Program};
pub use unsound::{NoCode, Unsound};
