//! Sites as words: a number for each file, and the offset.
//!
//! In: identities of files (device and inode), offsets. Out: numbers from 1 up, the same for the same identity;
//! sites.
//! Does not: open files, or forget any.
//!
//! A site is one word, so that a lookup compares one word: the file's number, given once by [`Files`] and
//! never again, and the offset. A number outlives the file. If an inode is used again for another file, the
//! same (device, inode) would lead to the old number, since no number is forgotten; so the code that
//! registers compares the file itself.

use alloc::collections::BTreeMap;
use core::num::{NonZeroU32, NonZeroU64};

use trapline_record::{FileId, FileOffset};

/// Bits of a site for the offset: files up to 1 TiB.
const OFFSET_BITS: u32 = 40;

/// (file, offset) as one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileSite(pub(crate) NonZeroU64);

/// Why (file, offset) cannot be a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadSite {
    /// Offsets end at 2^40.
    OffsetTooLarge {
        /// The offset.
        offset: FileOffset,
    },
    /// 2^24 − 1 files have numbers.
    TooManyFiles,
}

impl core::fmt::Display for BadSite {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::OffsetTooLarge { offset } => {
                write!(f, "offset {offset}: probes end at {:#x}", 1_u64 << OFFSET_BITS)
            }
            Self::TooManyFiles => {
                write!(f, "{} files have probes or were mapped: no more numbers", FileNumber::MAX)
            }
        }
    }
}

impl core::error::Error for BadSite {}

impl FileSite {
    /// The site of a file's number and an offset in it.
    ///
    /// # Errors
    /// The offset is too large.
    #[inline]
    pub const fn new(file: FileNumber, offset: FileOffset) -> Result<Self, BadSite> {
        match NonZeroU64::new((file.get() as u64) << OFFSET_BITS | offset.0) {
            Some(word) if offset.0 >> OFFSET_BITS == 0 => Ok(Self(word)),
            _ => Err(BadSite::OffsetTooLarge { offset }),
        }
    }
}

/// A file, by its number in this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileNumber(NonZeroU32);

impl FileNumber {
    /// The largest number.
    pub const MAX: u32 = (1 << 24) - 1;
    /// The number with this value; `None` if no file can have it.
    #[must_use]
    #[inline]
    pub const fn new(value: u32) -> Option<Self> {
        match NonZeroU32::new(value) {
            Some(number) if value <= Self::MAX => Some(Self(number)),
            _ => None,
        }
    }
    /// Its value.
    #[must_use]
    #[inline]
    pub const fn get(self) -> u32 {
        self.0.get()
    }
}

/// All numbers given so far; only writers use it.
#[derive(Debug, Default)]
pub struct Files(BTreeMap<FileId, FileNumber>);

impl Files {
    /// A file's number; a new one if it has none.
    ///
    /// # Errors
    /// All numbers are used.
    pub fn number(&mut self, file: FileId) -> Result<FileNumber, BadSite> {
        let next = self.0.len() as u32 + 1;
        match self.0.get(&file) {
            Some(&number) => Ok(number),
            None => {
                let number = FileNumber::new(next).ok_or(BadSite::TooManyFiles)?;
                self.0.insert(file, number);
                Ok(number)
            }
        }
    }
}
