//! The atomics in use: the processor's, or loom's in its models.
//!
//! Barriers between a reader and a writer are asymmetric. The reader's is only a compiler barrier. The
//! writer's is `membarrier`, which makes every running thread of the process execute a full barrier. A model
//! has no `membarrier`, so there both sides are full fences, which order the same pairs: whichever fence
//! comes first, loads behind the other one see the stores before it.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The reader's side of the writer's `membarrier`: the compiler does not move stores before it behind loads
/// after it.
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    fence(core::sync::atomic::Ordering::SeqCst);
}
