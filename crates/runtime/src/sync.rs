//! The atomics in use: the processor's, or loom's in its models. And two small words over which other code is
//! safe: a pointer to something that is never freed, and a word that is written for its address's readers.
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

/// A pointer to something that is never freed: a writer stores it, handlers follow it without a lock. What was
/// written before it was stored is visible to the code that follows it (release, acquire).
#[repr(transparent)]
pub(crate) struct Leaked<T: 'static>(core::sync::atomic::AtomicPtr<T>);

impl<T: Sync> Leaked<T> {
    pub(crate) const fn new(to: &'static T) -> Self {
        Self(core::sync::atomic::AtomicPtr::new(core::ptr::from_ref(to).cast_mut()))
    }
    #[inline]
    pub(crate) fn get(&self) -> &'static T {
        // SAFETY: only `'static` references are stored, so it is never null and never dangles. The pointer is
        // used for shared access only, as its origin allows.
        unsafe { &*self.0.load(Acquire) }
    }
    pub(crate) fn set(&self, to: &'static T) {
        self.0.store(core::ptr::from_ref(to).cast_mut(), Release);
    }
}

impl<T> core::fmt::Debug for Leaked<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Like [`Leaked`], and null at first.
#[repr(transparent)]
pub(crate) struct LeakedOrNone<T: 'static>(core::sync::atomic::AtomicPtr<T>);

impl<T: Sync> LeakedOrNone<T> {
    pub(crate) const fn none() -> Self {
        Self(core::sync::atomic::AtomicPtr::new(core::ptr::null_mut()))
    }
    #[inline]
    pub(crate) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a `'static` reference, used for shared access only.
        unsafe { self.0.load(Acquire).as_ref() }
    }
    pub(crate) fn set(&self, to: &'static T) {
        self.0.store(core::ptr::from_ref(to).cast_mut(), Release);
    }
}

impl<T> core::fmt::Debug for LeakedOrNone<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// A word that one thread writes by this name, and that others read through its address alone: each write is
/// made, although nothing here reads it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct WrittenWord(core::cell::UnsafeCell<u64>);

impl WrittenWord {
    pub(crate) const fn new() -> Self {
        Self(core::cell::UnsafeCell::new(0))
    }
    pub(crate) fn address(&self) -> u64 {
        self.0.get() as u64
    }
    pub(crate) fn write(&self, word: u64) {
        // SAFETY: only this thread reaches the cell by its name (it is not `Sync`), and no reference to its
        // content exists.
        unsafe { self.0.get().write_volatile(word) };
    }
}
