//! Numbers for files, so that a site is one word.
//!
//! In: identities (device and inode). Out: numbers from 1 up, the same for the same identity.
//! Does not: open files, or forget any.

use alloc::collections::BTreeMap;
use core::num::NonZeroU32;

use trapline_record::FileId;

use super::BadSite;

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
