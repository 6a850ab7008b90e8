//! Baselines with a lock around every lookup: a readers-writer lock, and a mutex.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock};

use super::operations::{Lookup, Mapped};
use super::plain::Plain;

macro_rules! locked {
    ($(#[$doc:meta])* $name:ident, $lock:ident, $read:ident, $write:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name {
            plain: $lock<Plain>,
            next: AtomicU64,
        }
        impl $name {
            pub(super) fn new(regions: usize, probes: usize) -> Self {
                Self { plain: $lock::new(Plain::new(regions, probes)), next: AtomicU64::new(1) }
            }
        }
        impl Lookup for $name {
            fn find(&self, addr: u64) -> Option<u64> {
                self.plain.$read().unwrap_or_else(PoisonError::into_inner).find(addr)
            }
            fn map(&self, mapped: Mapped) {
                self.plain.$write().unwrap_or_else(PoisonError::into_inner).map(mapped);
            }
            fn unmap(&self, mapped: Mapped) {
                self.plain.$write().unwrap_or_else(PoisonError::into_inner).unmap(mapped);
            }
            fn register(&self, file: u64, offset: u64) -> u64 {
                let probe = self.next.fetch_add(1, Relaxed);
                self.plain.$write().unwrap_or_else(PoisonError::into_inner).set(file, offset, probe);
                probe
            }
            fn unregister(&self, file: u64, offset: u64) {
                self.plain.$write().unwrap_or_else(PoisonError::into_inner).set(file, offset, 0);
            }
            /// The lock of the address space is held while it changes, as `mmap_lock` is.
            fn elsewhere(&self, change: &mut dyn FnMut()) {
                let _changing = self.plain.$write().unwrap_or_else(PoisonError::into_inner);
                change();
            }
        }
    };
}

locked! {
    /// Lookups share the lock.
    Rwlock, RwLock, read, write
}
locked! {
    /// One lookup at a time.
    OneMutex, Mutex, lock, lock
}
