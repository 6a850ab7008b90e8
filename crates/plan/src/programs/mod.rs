//! What hits do, each written once, as operations of a program.
//!
//! In: what is asked for. Out: operations, which the compiler makes code of for both processors, and which the interpreter
//! runs. One file for each; its table of steps stands at its head.
//! Does not: know registers, stacks or processors.

mod bucket;

pub(crate) use bucket::bucket;
