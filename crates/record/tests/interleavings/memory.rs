//! Shared memory, and the operations on it of everything but the tracer.

use loom::sync::Arc;
use trapline_record::sync::{AtomicU64, Ordering};
use trapline_record::view::View;

/// Words that are zero at first.
pub(crate) struct Memory(Vec<AtomicU64>);

impl Memory {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }
    /// The tracer's way to access it. Stubs load and store in the same way.
    pub(crate) fn view(&self) -> View<'_> {
        View::new(&self.0)
    }
    /// `lock cmpxchg` of 0 by `tag`. Returns the old value.
    pub(crate) fn cmpxchg(&self, at: u64, tag: u64) -> u64 {
        let word = &self.0[(at / 8) as usize];
        word.compare_exchange(0, tag, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|found| found)
    }
    /// `lock cmpxchg` of `from` by `to`. Returns whether the old value was `from`.
    pub(crate) fn exchange(&self, at: u64, from: u64, to: u64) -> bool {
        let word = &self.0[(at / 8) as usize];
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
    /// What `cmpxchg` must not be: a load, then a store.
    pub(crate) fn look_then_store(&self, at: u64, tag: u64) -> u64 {
        let found = self.view().get(at);
        if found == 0 {
            self.view().set(at, tag);
        }
        found
    }
    /// What `lock add` must not be.
    pub(crate) fn load_then_store(&self, at: u64, by: u64) {
        self.view().set(at, self.view().get(at) + by);
    }
}
