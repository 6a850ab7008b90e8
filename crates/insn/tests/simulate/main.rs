//! Simulated x86-64 instructions against the processor, and their decoding against a second disassembler.
#![allow(unsafe_code, reason = "instructions are run natively")]

mod faults;
mod machine;
mod native;
mod objdump;
mod states;
mod text;
