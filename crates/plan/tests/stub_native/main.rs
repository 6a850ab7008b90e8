//! Generated code, run where it can be watched: in this process.
//!
//! Each module holds one promise: state kept (SAFE-2), counts exact (LOSS-1), durations right, guard traps served.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod arena;
mod counts;
mod durations;
mod state;
mod threads;
mod traps;
