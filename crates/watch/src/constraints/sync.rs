//! The locks and atomics that are used: those of std, or in models those of loom.

use std::sync::PoisonError;

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicU32,
};
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic::AtomicU32};

use std::sync::{LockResult, TryLockError, TryLockResult};

/// The guard. Nothing panics while these locks are held, so even a poisoned lock would guard a complete
/// state.
fn whole<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}

fn free<G>(result: TryLockResult<G>) -> Option<G> {
    match result {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Whether an operation may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Patience {
    Wait,
    Never,
}

impl Patience {
    /// The guard, or `None` if the lock is not free and the operation may not wait.
    pub(super) fn lock<T>(self, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        match self {
            Self::Wait => Some(whole(mutex.lock())),
            Self::Never => free(mutex.try_lock()),
        }
    }
    pub(super) fn read<T>(self, lock: &RwLock<T>) -> Option<RwLockReadGuard<'_, T>> {
        match self {
            Self::Wait => Some(whole(lock.read())),
            Self::Never => free(lock.try_read()),
        }
    }
    pub(super) fn write<T>(self, lock: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
        match self {
            Self::Wait => Some(whole(lock.write())),
            Self::Never => free(lock.try_write()),
        }
    }
}
