//! New executable mappings of a process, learnt from perf MMAP2 records.

use trapline_record::{FileOffset, RemoteAddr};

use crate::error::TargetError;
use crate::maps::FileId;

/// An executable mapping that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMapping {
    /// Who made it.
    pub pid: u32,
    /// Where.
    pub start: RemoteAddr,
    /// Bytes.
    pub len: u64,
    /// Offset in the file.
    pub offset: FileOffset,
    /// The file.
    pub file: FileId,
    /// Its path, as the kernel shows it.
    pub path: String,
}

/// Watches one process, with threads and children born later.
#[derive(Debug)]
pub struct MapWatcher {}

impl MapWatcher {
    /// Starts to watch.
    ///
    /// # Errors
    /// When the kernel does not permit it; poll the maps instead.
    pub fn new(pid: u32) -> Result<Self, TargetError> {
        let _ = pid;
        todo!()
    }
    /// What was mapped since the last call.
    pub fn poll(&mut self) -> Vec<NewMapping> {
        todo!()
    }
    /// Records that the kernel dropped because nobody polled in time: read the maps once.
    #[must_use]
    pub fn lost(&self) -> u64 {
        todo!()
    }
}
