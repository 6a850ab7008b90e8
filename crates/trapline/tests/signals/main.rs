//! Signals of a program that probes itself, and everything else that could distinguish a jump from a trap:
//! nothing may. The handlers are installed before the first registration, as a program's own are.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code, reason = "signal handlers, code by address, registers that handlers change")]

mod faults;
mod moves;
mod program;
mod sent;
mod vectors;
