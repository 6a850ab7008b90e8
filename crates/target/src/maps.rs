//! /proc/PID/maps as values, and the files behind mappings.

use std::fs::File;
use std::path::PathBuf;

use trapline_record::{FileOffset, RemoteAddr};

/// A file's identity. `dev` is as `stat` gives it (`makedev(major, minor)`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId {
    /// Device.
    pub dev: u64,
    /// Inode.
    pub inode: u64,
}

/// What a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Perms {
    /// Readable.
    pub read: bool,
    /// Writable.
    pub write: bool,
    /// Executable.
    pub exec: bool,
    /// MAP_SHARED.
    pub shared: bool,
}

/// One line of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub start: RemoteAddr,
    /// First address after it.
    pub end: RemoteAddr,
    /// What it allows.
    pub perms: Perms,
    /// Offset in the file.
    pub offset: FileOffset,
    /// The file, when there is one (inode not 0).
    pub file: Option<FileId>,
    /// What the kernel calls it: a path in the target's namespace without " (deleted)", or `[stack]`, or empty.
    pub path: String,
    /// The kernel says that the path is no longer that file.
    pub deleted: bool,
}

/// The opened file of a mapping.
#[derive(Debug)]
pub struct FileOf {
    /// The very file that is mapped (device and inode compared).
    pub file: File,
    /// Where it was opened.
    pub path: PathBuf,
    /// The mapped path now names another file, or none: "replaced on disk".
    pub replaced: bool,
}
