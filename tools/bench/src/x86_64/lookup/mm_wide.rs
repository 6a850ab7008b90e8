//! The lookup of the reference design: one sequence number for the whole address space, odd while it changes.
//! A lookup that finds it odd, or changed afterwards, is repeated under the lock, as the kernel falls back to
//! `mmap_lock`. The first attempt never waits.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use std::sync::{PoisonError, RwLock};

use super::operations::{Lookup, Mapped};
use super::plain::Plain;

/// The lookup that the module describes.
#[derive(Debug)]
pub(super) struct MmWide {
    seq: Seq,
    plain: Plain,
    lock: RwLock<()>,
    next: AtomicU64,
}

/// The sequence number, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Seq(AtomicU64);

impl MmWide {
    pub(super) fn new(regions: usize, probes: usize) -> Self {
        let (seq, lock) = (Seq::default(), RwLock::new(()));
        Self { seq, plain: Plain::new(regions, probes), lock, next: AtomicU64::new(1) }
    }
    /// Does what the write side of `mmap_lock` does.
    fn change<T>(&self, change: impl FnOnce(&Plain) -> T) -> T {
        let _changing = self.lock.write().unwrap_or_else(PoisonError::into_inner);
        let seq = self.seq.0.load(Relaxed);
        self.seq.0.store(seq + 1, Relaxed);
        fence(Release);
        let result = change(&self.plain);
        self.seq.0.store(seq + 2, Release);
        result
    }
    #[cold]
    fn find_locked(&self, addr: u64) -> Option<u64> {
        let _looking = self.lock.read().unwrap_or_else(PoisonError::into_inner);
        self.plain.find(addr)
    }
}

impl Lookup for MmWide {
    fn find(&self, addr: u64) -> Option<u64> {
        let seq = self.seq.0.load(Acquire);
        if seq & 1 == 0 {
            let found = self.plain.find(addr);
            fence(Acquire);
            if found.is_some() && self.seq.0.load(Relaxed) == seq {
                return found;
            }
        }
        self.find_locked(addr)
    }
    fn map(&self, mapped: Mapped) {
        self.change(|plain| plain.map(mapped));
    }
    fn unmap(&self, mapped: Mapped) {
        self.change(|plain| plain.unmap(mapped));
    }
    fn register(&self, file: u64, offset: u64) -> u64 {
        let probe = self.next.fetch_add(1, Relaxed);
        self.change(|plain| plain.set(file, offset, probe));
        probe
    }
    fn unregister(&self, file: u64, offset: u64) {
        self.change(|plain| plain.set(file, offset, 0));
    }
    fn elsewhere(&self, change: &mut dyn FnMut()) {
        self.change(|_| change());
    }
}
