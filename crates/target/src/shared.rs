//! A segment's memory from the tracer's side.

use std::os::fd::OwnedFd;

use trapline_record::view::View;

use crate::error::TargetError;
use crate::maps::FileId;

/// A memfd mapped read-write here, whatever its mappings in the target.
#[derive(Debug)]
pub struct SharedMap {
    #[allow(dead_code, reason = "signatures first")]
    fd: OwnedFd,
    len: u64,
}

impl SharedMap {
    /// Maps `len` bytes of a memfd, growing it when it is shorter.
    ///
    /// # Errors
    /// When it cannot be grown or mapped.
    pub fn new(fd: OwnedFd, len: u64) -> Result<Self, TargetError> {
        Ok(Self { fd, len })
    }
    /// Maps the whole of a memfd that a process maps already (`/proc/PID/map_files`, for a later tracer).
    ///
    /// # Errors
    /// When it cannot be opened or mapped.
    pub fn of_mapping(process: &crate::Process, mapping: &crate::Mapping) -> Result<Self, TargetError> {
        let _ = (process, mapping);
        todo!()
    }
    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }
    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Its words.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        todo!()
    }
    /// Writes bytes at any offset (code that nobody runs yet); false when out of range.
    pub fn write(&self, off: u64, bytes: &[u8]) -> bool {
        let _ = (off, bytes);
        todo!()
    }
    /// Reads bytes; false when out of range.
    pub fn read(&self, off: u64, into: &mut [u8]) -> bool {
        let _ = (off, into);
        todo!()
    }
    /// Gives pages back to the system; they read as zero afterwards.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn punch(&self, off: u64, len: u64) -> Result<(), TargetError> {
        let _ = (off, len);
        todo!()
    }
    /// Bytes of memory behind it (st_blocks).
    #[must_use]
    pub fn resident(&self) -> u64 {
        todo!()
    }
    /// Its identity, as /proc/PID/maps shows it.
    #[must_use]
    pub fn id(&self) -> FileId {
        todo!()
    }
}
