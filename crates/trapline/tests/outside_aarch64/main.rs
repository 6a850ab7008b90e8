//! Another arm64 program, probed from outside: this program itself, run once more as the victim. It needs
//! ptrace, and so a kernel: `cargo xtask arm64-system` runs it. Under user-mode emulation every test skips
//! itself.
#![cfg(all(target_arch = "aarch64", target_os = "linux"))]

mod by;
mod calls;
mod command;
mod counts;
mod crowd;
mod death;
mod go;
mod held;
mod islands;
mod kernel;
mod latency;
mod load;
mod records;
mod refusals;
mod return_trampolines;
mod stacks;
mod unwound;
mod victim;
mod watch;
