//! The atomic word of shared memory: the processor's, or that of a model which tries every interleaving
//! (feature `loom_words`).

#[cfg(not(feature = "loom_words"))]
pub use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(feature = "loom_words")]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
