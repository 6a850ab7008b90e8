//! The atomic words of the pool: the processor's, or those of a model which tries every interleaving
//! (`cfg(loom)`).

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64};

pub(super) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
