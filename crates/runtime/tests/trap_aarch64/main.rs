//! The trap path in a process of its own, on arm64: real `brk`s in mapped code, and the kernel's own signals
//! (or an emulator's).
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
