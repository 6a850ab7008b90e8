//! The atomic word of shared memory: the machine's, or that of a model which tries every interleaving (`cfg(loom)`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering};
