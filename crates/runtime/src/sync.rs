//! The atomics in use: the machine's, or loom's in its models.
//!
//! Barriers between a reader and a writer are asymmetric: the reader's costs nothing but the compiler's order, the writer's
//! is `membarrier`, which makes every running thread of the process execute a full barrier. A model has no `membarrier`;
//! there both sides are full fences, which order the same pairs: whichever fence comes first, what stands before it is seen
//! by whoever reads behind the other.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, fence};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// The reader's side of the writer's `membarrier`: stores before it are not moved behind loads after it by the compiler.
#[inline]
pub(crate) fn light_barrier() {
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    fence(core::sync::atomic::Ordering::SeqCst);
}
