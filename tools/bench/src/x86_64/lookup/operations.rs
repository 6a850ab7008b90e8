//! What the compared lookups do.

/// Size of a page.
pub(super) const PAGE: u64 = 4096;

/// A mapping of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mapped {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Number of the file, from 1 up.
    pub(super) file: u64,
    pub(super) offset: u64,
}

/// The compared operations. `map` and `unmap` report that the address space has changed there. A mapping
/// never covers one that exists, and only whole mappings are removed.
pub(super) trait Lookup: Sync {
    /// What `register` returned for the place where the address lies.
    fn find(&self, addr: u64) -> Option<u64>;
    fn map(&self, mapped: Mapped);
    fn unmap(&self, mapped: Mapped);
    /// Registers a probe. Returns the number that lookups there will find.
    fn register(&self, file: u64, offset: u64) -> u64;
    fn unregister(&self, file: u64, offset: u64);
    /// The address space changes where no known mapping lies.
    fn elsewhere(&self, change: &mut dyn FnMut());
}
