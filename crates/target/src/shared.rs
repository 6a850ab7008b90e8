//! A segment's memory from the tracer's side.
//!
//! Input: a memfd. Output: its words through a bounds-checked view, its bytes by copies. Does not: know what the words
//! mean.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use trapline_record::view::View;

use crate::error::TargetError;
use crate::maps::FileId;
use crate::sys::{fd, map::Map};
use crate::{Mapping, Process};

/// A memfd mapped read-write here, whatever its mappings in the target.
#[derive(Debug)]
pub struct SharedMap {
    file: File,
    map: Map,
    len: u64,
    id: FileId,
}

fn failed(what: &str, source: std::io::Error) -> TargetError {
    TargetError::system(std::process::id(), format!("{what} the shared memory"), source)
}

impl SharedMap {
    /// Maps `len` bytes of a memfd, growing it when it is shorter.
    ///
    /// # Errors
    /// When it cannot be grown or mapped.
    pub fn new(fd: OwnedFd, len: u64) -> Result<Self, TargetError> {
        let file = File::from(fd);
        let meta = file.metadata().map_err(|e| failed("examine", e))?;
        if meta.len() < len {
            file.set_len(len).map_err(|e| failed("grow", e))?;
        }
        let map = Map::new(file.as_fd(), len as usize).map_err(|e| failed("map", e))?;
        Ok(Self { file, map, len, id: FileId { dev: meta.dev(), inode: meta.ino() } })
    }
    /// Maps the whole of a memfd that a process maps already (`/proc/PID/map_files`, for a later tracer).
    ///
    /// # Errors
    /// When it cannot be opened or mapped.
    pub fn of_mapping(process: &Process, mapping: &Mapping) -> Result<Self, TargetError> {
        let path = mapping.map_files_path(process.pid());
        let fail = |e: std::io::Error| TargetError::File { path: path.clone(), why: e.to_string() };
        let file = File::options().read(true).write(true).open(&path).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        Self::new(OwnedFd::from(file), len)
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
        View::new(self.map.words())
    }
    /// Writes bytes at any offset (code that nobody runs yet); false when out of range.
    #[must_use]
    pub fn write(&self, off: u64, bytes: &[u8]) -> bool {
        self.map.write(off, bytes)
    }
    /// Reads bytes; false when out of range.
    #[must_use]
    pub fn read(&self, off: u64, into: &mut [u8]) -> bool {
        self.map.read(off, into)
    }
    /// Gives pages back to the system; they read as zero afterwards.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn punch(&self, off: u64, len: u64) -> Result<(), TargetError> {
        if len == 0 {
            return Ok(()); // the kernel calls that an invalid argument
        }
        fd::punch(self.file.as_fd(), off, len).map_err(|e| failed("give back part of", e))
    }
    /// Bytes of memory behind it (st_blocks).
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.file.metadata().map_or(0, |meta| meta.blocks() * 512)
    }
    /// Its identity, as /proc/PID/maps shows it.
    #[must_use]
    pub const fn id(&self) -> FileId {
        self.id
    }
}
