//! The trap path in a process of its own, on arm64: real `brk`s in mapped code, with signals from the kernel
//! (or an emulator).
#![cfg(target_arch = "aarch64")]
#![allow(unsafe_code, reason = "code is written and run")]

mod engine;
mod faults;
mod foreign;
mod guarded;
mod hits;
mod kernel;
mod panics;
mod quick;
mod site;
mod state;
mod storm;
