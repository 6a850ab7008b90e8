//! x86-64: the trap handler, and what the kernel saves at a signal.

pub mod general;
pub mod thread;
