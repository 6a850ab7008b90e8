//! A segment's memory as the tracer maps it.
//!
//! Input: a memfd. Output: its words through a bounds-checked view, its bytes by copies. Does not: know what
//! the words mean.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use trapline_record::view::View;

use crate::error::TargetError;
use crate::maps::FileId;
use crate::sys::{fd, limit, map::Map};

/// A memfd mapped read-write here, whatever its mappings in the target.
#[derive(Debug)]
pub struct SharedMap {
    file: File,
    map: Map,
    len: u64,
    id: FileId,
    settled: bool,
}

fn failed(what: &str, source: std::io::Error) -> TargetError {
    TargetError::system(std::process::id(), format!("{what} the shared memory"), source)
}

impl SharedMap {
    /// Maps `len` bytes of a memfd, and grows it if it is shorter. It is sealed against shrinking first: a
    /// thread that touches a mapping behind the file's end gets SIGBUS, and the target, which has the file
    /// open, could cause that.
    ///
    /// # Errors
    /// When it cannot be grown, sealed (no memfd, or made without MFD_ALLOW_SEALING) or mapped.
    pub fn new(fd: OwnedFd, len: u64) -> Result<Self, TargetError> {
        let file = File::from(fd);
        if file.metadata().map_err(|e| failed("examine", e))?.len() < len {
            let grown = limit::with_file_size(len, || file.set_len(len));
            let too_low = |limit::TooLow(limit)| TargetError::FileSizes { limit, needed: len };
            grown.map_err(too_low)?.map_err(|e| failed("grow", e))?;
        }
        fd::seal_size(file.as_fd()).map_err(|e| failed("seal", e))?;
        // What held before the seal need not hold any more.
        let meta = file.metadata().map_err(|e| failed("examine", e))?;
        if meta.len() < len {
            return Err(failed("grow", std::io::ErrorKind::UnexpectedEof.into()));
        }
        let map = Map::new(file.as_fd(), len as usize).map_err(|e| failed("map", e))?;
        Ok(Self { file, map, len, id: FileId { dev: meta.dev(), inode: meta.ino() }, settled: false })
    }
    /// Whether its words are final: no process maps it any more in a way that allows writing, and none ever
    /// can. False while one does. Those are the processes that it was made for, and all that were forked from
    /// them, whatever became of them since. To be called only when no thread of the tracer is about to write.
    ///
    /// # Errors
    /// When the kernel refuses to seal it.
    pub fn settle(&mut self) -> Result<bool, TargetError> {
        if !self.settled {
            self.settled = self.map.seal(self.file.as_fd()).map_err(|e| failed("settle", e))?;
        }
        Ok(self.settled)
    }
    /// Its length in bytes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }
    /// Whether its length is 0.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Wakes all threads that wait by a shared futex on the 32 bits at this offset.
    pub fn wake(&self, off: u64) {
        self.map.wake(off);
    }
    /// Its words.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View::new(self.map.words())
    }
    /// Writes bytes at any offset, for code that no thread runs yet. Returns false when out of range.
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
    /// Allocates pages that do not exist yet, so that they are charged to us and not to the process that
    /// writes them first. They read as zero.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn pay(&self, off: u64, len: u64) -> Result<(), TargetError> {
        /// Bytes for one call. A signal undoes the call that it interrupts, so each call is kept short.
        const PART: u64 = 4 << 20;
        let end = off.saturating_add(len);
        let mut from = off;
        while from < end {
            let part = PART.min(end - from);
            match fd::allocate(self.file.as_fd(), from, part) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("allocate", error)),
                Ok(()) => from += part,
            }
        }
        Ok(())
    }
    /// The ranges of `off..off + len` that have memory behind them, in order. All else reads as zero, and
    /// would take memory by being read.
    #[must_use]
    pub fn written(&self, off: u64, len: u64) -> Vec<Range<u64>> {
        let (mut from, end) = (off, off.saturating_add(len).min(self.len));
        let mut written = Vec::new();
        while from < end {
            match fd::next_data(self.file.as_fd(), from) {
                Ok(None) => break,
                Ok(Some((start, _))) if start >= end => break,
                Ok(Some((start, until))) => {
                    written.push(start..until.min(end));
                    from = until;
                }
                // Not known, so all of it may be written.
                Err(_) => {
                    written.push(from..end);
                    break;
                }
            }
        }
        written
    }
    /// Bytes of memory behind it, from st_blocks.
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;

    use super::SharedMap;
    use crate::sys::fd;

    #[test]
    fn what_is_paid_for_is_there_and_counts_as_unwritten() {
        let map = SharedMap::new(fd::memfd(c"shared", true).expect("a memfd"), 64 << 12).expect("a map");
        map.pay(4096, 9 << 12).expect("memory");
        assert_eq!(map.resident(), 9 << 12);
        assert!(map.written(0, 64 << 12).is_empty());
        assert!(map.write(4096, &[1]));
        let written = map.written(0, 64 << 12);
        assert_eq!((map.resident(), written.len(), written.first()), (9 << 12, 1, Some(&(4096..8192))));
    }

    #[test]
    fn bytes_are_written_wherever_they_begin_and_end() {
        let map = SharedMap::new(fd::memfd(c"shared", true).expect("a memfd"), 4096).expect("a map");
        let bytes: Vec<u8> = (1..=40).collect();
        for (off, len) in (0..16).flat_map(|off| (0..=24).map(move |len| (off, len))) {
            assert!(map.write(0, &[0; 64]) && map.write(off as u64, &bytes[..len]));
            let mut all = [0; 64];
            assert!(map.read(0, &mut all));
            assert_eq!(all[off..off + len], bytes[..len]);
            assert!(all.iter().filter(|byte| **byte != 0).count() == len, "{off} {len}: {all:?}");
        }
        assert!(!map.write(4090, &bytes[..8]) && map.write(4090, &bytes[..6]));
    }

    #[test]
    fn what_has_memory_behind_it_is_reported_and_looking_takes_none() {
        let map = SharedMap::new(fd::memfd(c"shared", true).expect("a memfd"), 64 << 12).expect("a map");
        assert_eq!(map.written(0, 64 << 12), []);
        for page in [3, 4, 9] {
            assert!(map.write((page << 12) + 100, b"trapline"));
        }
        let pages = |from: u64, to: u64| from << 12..to << 12;
        assert_eq!(map.written(0, 64 << 12), [pages(3, 5), pages(9, 10)]);
        assert_eq!(map.written(4 << 12, 2 << 12), [pages(4, 5)]);
        assert_eq!(map.written(10 << 12, u64::MAX), []);
        assert_eq!(map.resident(), 3 << 12);
    }

    #[test]
    fn another_process_that_has_it_open_cannot_shrink_it() {
        let ours = fd::memfd(c"shared", true).expect("a memfd");
        let theirs = File::from(ours.try_clone().expect("a second descriptor"));
        let map = SharedMap::new(ours, 8192).expect("a map");
        assert!(map.write(8000, b"trapline"));
        let error = theirs.set_len(0).expect_err("sealed");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let mut read = [0; 8];
        assert!(map.read(8000, &mut read));
        assert_eq!(&read, b"trapline");
        assert!(map.punch(4096, 4096).is_ok(), "pages can still be given back");
        // A second map of the same memory, which is sealed already.
        assert!(SharedMap::new(OwnedFd::from(theirs), 8192).is_ok());
    }

    /// Another mapping of the same memory stands for a child's: the kernel counts mappings in all processes
    /// alike.
    #[test]
    fn words_are_final_once_no_other_process_can_write_them() {
        let ours = fd::memfd(c"shared", true).expect("a memfd");
        let theirs = ours.try_clone().expect("a second descriptor");
        let mut map = SharedMap::new(ours, 8192).expect("a map");
        let other =
            SharedMap::new(theirs.try_clone().expect("a third descriptor"), 8192).expect("a second map");
        assert!(map.write(64, b"trapline"));
        for more in 1..=3 {
            assert!(!map.settle().expect("an answer"), "the other may still write");
            assert!(other.write(72, &[more; 8]) && map.write(80, &[more; 8]));
            let (mut seen, mut read_back) = ([0; 8], [0; 8]);
            assert!(map.read(72, &mut seen) && other.read(80, &mut read_back));
            assert_eq!((seen, read_back), ([more; 8], [more; 8]), "both are shared as before");
        }
        drop(other);
        assert!(map.settle().expect("an answer") && map.settle().expect("the same again"));
        let mut read = [0; 16];
        assert!(map.read(64, &mut read));
        assert_eq!(&read, b"trapline\x03\x03\x03\x03\x03\x03\x03\x03");
        assert!(SharedMap::new(theirs, 8192).is_err(), "none can be made afterwards");
    }

    #[test]
    fn what_cannot_be_sealed_is_not_mapped() {
        let fd = fd::memfd(c"shared", false).expect("a memfd");
        assert!(SharedMap::new(fd, 8192).is_err());
    }
}
