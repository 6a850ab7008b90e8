//! Machine code as values: decode, classify, relocate, simulate. Internal to Trapline.
//!
//! In: bytes and the address that they are at (a plain `u64`: callers decode in whatever address space they
//! work in, that of the ELF file or the live one). Out: instructions, a function's exits, displaced
//! instructions that do the same elsewhere, and the effect of one on registers and memory.
//!
//! Invariants: INSN-1 no input panics, however malformed. INSN-2 what is not understood is `Flow::Invalid`
//! and is never displaced (SAFE-5). INSN-3 a displaced instruction leaves the same registers, flags and
//! memory as at its old place, and control goes where it would have gone (SAFE-2).
//!
//! Does not: read files, know processes, choose windows, or write code anywhere.
#![forbid(unsafe_code)]

pub mod aarch64;
pub mod effect;
pub mod origin;
pub mod x86_64;
