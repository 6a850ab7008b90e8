//! Mappings of files: as the system reports them, as a lookup finds them, as a picture shows them.
//!
//! In: nothing. Out: plain values.
//! Does not: keep them (`entry`, `map`).

use trapline_record::{FileId, FileOffset, RemoteAddr};

use crate::file_site::{FileNumber, FileSite};

/// A mapping of a file, as the system reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: RemoteAddr,
    /// First address after it.
    pub end: RemoteAddr,
    /// Offset in the file at which it begins.
    pub offset: FileOffset,
    /// The file.
    pub file: FileId,
    /// Its access rights and kind.
    pub access: Access,
}

/// Access rights and kind of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// Executable.
    pub exec: bool,
    /// Writable.
    pub write: bool,
    /// MAP_SHARED.
    pub shared: bool,
    /// Of huge pages (hugetlbfs).
    pub huge: bool,
}

impl Access {
    /// RGN-4: whether breakpoints may be placed in it.
    #[must_use]
    pub const fn takes_breakpoints(self) -> bool {
        self.exec && !self.write && !self.shared && !self.huge
    }
}

/// The region was changing: look up again, or use the writer's own map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry;

/// What is mapped at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FoundRegion {
    /// Number of the file.
    pub file: FileNumber,
    /// Offset in the file.
    pub offset: FileOffset,
    /// Whether the region takes breakpoints.
    pub takes_breakpoints: bool,
    /// Number of the region's entry, and its sequence.
    pub(super) entry: u16,
    pub(super) seq: u64,
}

impl FoundRegion {
    /// The site, if a probe can be there.
    #[must_use]
    #[inline]
    pub fn site(&self) -> Option<FileSite> {
        if self.takes_breakpoints { self.place() } else { None }
    }
    /// The site, whether or not a probe can be placed there now: a probe may have been placed before the
    /// mapping changed.
    #[must_use]
    #[inline]
    pub fn place(&self) -> Option<FileSite> {
        FileSite::new(self.file, self.offset).ok()
    }
}

/// One region in a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// First address.
    pub start: RemoteAddr,
    /// First address after it.
    pub end: RemoteAddr,
    /// Offset in the file at which it begins.
    pub offset: FileOffset,
    /// The file.
    pub file: FileId,
    /// Whether breakpoints may be placed there.
    pub takes_breakpoints: bool,
}
