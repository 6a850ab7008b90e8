//! Where generated code and its data may lie.

use trapline_record::RemoteAddr;

/// A picture of a process' address space.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AddressSpace {
    /// What is mapped: half-open ranges, sorted, not overlapping.
    pub occupied: Vec<(RemoteAddr, RemoteAddr)>,
    /// End of the heap that grows by `brk`, if there is one.
    pub heap_end: Option<RemoteAddr>,
}

impl AddressSpace {
    /// Adds a range (a module's space that was just planned).
    pub fn occupy(&mut self, start: RemoteAddr, end: RemoteAddr) {
        let at = self.occupied.partition_point(|r| r.0 < start);
        self.occupied.insert(at, (start, end));
    }
    /// A free range of `len` bytes (whole pages) anywhere, away from what grows; for entry stamps.
    #[must_use]
    pub fn find(&self, len: u64) -> Option<RemoteAddr> {
        let _ = len;
        todo!()
    }
}
