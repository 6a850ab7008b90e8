//! What the kernel told a program at its exec: the auxiliary vector.
//!
//! In: a pid. Out: its words. Does not: read memory.

use std::io;
use std::path::Path;

use crate::procfs;

/// Keys of words.
pub(crate) const AT_PHDR: u64 = 3;
pub(crate) const AT_BASE: u64 = 7;
pub(crate) const AT_ENTRY: u64 = 9;
pub(crate) const AT_HWCAP: u64 = 16;
pub(crate) const AT_HWCAP2: u64 = 26;

/// The auxiliary vector of a program.
#[derive(Debug)]
pub(crate) struct Auxv(Vec<u8>);

impl Auxv {
    /// That of the program that a process runs now.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Self::in_folder(Path::new(&format!("/proc/{pid}")))
    }
    /// The same, by a folder of /proc.
    ///
    /// # Errors
    /// When it is gone, or has no memory.
    pub(crate) fn in_folder(folder: &Path) -> io::Result<Self> {
        match procfs::read(folder.join("auxv"))? {
            // A main thread that has ended, or a thread of the kernel, shows none.
            none if none.is_empty() => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            words => Ok(Self(words)),
        }
    }
    /// The value of a key.
    pub(crate) fn word(&self, key: u64) -> Option<u64> {
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_le_bytes).ok();
        let mut pairs = self.0.chunks_exact(16);
        pairs.find(|pair| word(&pair[..8]) == Some(key)).and_then(|pair| word(&pair[8..]))
    }
    /// Address of the program's loader, if it has one.
    pub(crate) fn loader(&self) -> Option<u64> {
        self.word(AT_BASE).filter(|base| *base != 0)
    }
}

/// Address of a process' loader; `None` if it has none, or is gone.
pub(crate) fn loader(pid: u32) -> Option<u64> {
    Auxv::of(pid).ok()?.loader()
}
