//! A program that probes itself, on arm64: a library of C functions, loaded by dlopen, called and probed by the
//! threads of this process.
//! Run under user-mode emulation (`cargo xtask arm64`), so each test makes no more calls than it needs.
#![cfg(all(target_arch = "aarch64", target_os = "linux"))]

mod calls;
#[path = "../outside_aarch64/crowd.rs"]
mod crowd;
mod crowded;
mod errors;
mod forms;
mod general;
mod life;
mod return_trampolines;
mod returns;
mod state;
mod storm;
mod unwinding;
mod victim;
