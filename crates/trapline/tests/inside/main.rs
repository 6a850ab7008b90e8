//! A program that probes itself: a library of C functions is loaded by dlopen, and called and probed by the
//! threads of this process.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod calls;
mod consumers;
mod errors;
mod filters;
mod kernel;
mod leaves;
mod life;
mod maps;
mod returns;
mod semaphores;
mod sessions;
mod storm;
mod victim;
