//! Simulated x86-64 instructions compared with the processor, and their decoding compared with a second
//! disassembler.
#![allow(unsafe_code, reason = "instructions are run natively")]

mod faults;
mod machine;
mod native;
mod objdump;
mod states;
mod text;
