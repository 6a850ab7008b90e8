//! The trap path in a process of its own: real int3s in mapped code, the kernel's own signals.
#![allow(unsafe_code, reason = "code is written and run")]

mod differential;
mod engine;
mod faults;
mod foreign;
mod hits;
#[path = "../../../insn/tests/simulate/machine.rs"]
mod machine;
mod panics;
mod site;
mod state;
#[path = "../../../insn/tests/simulate/states.rs"]
mod states;
mod storm;
