//! What a program asks for: a site, and the consumer that is called there.
//!
//! In: a file, an offset, a [`Consumer`], options. Out: a value. Does not: check it (`check`).

use std::path::{Path, PathBuf};

use super::Consumer;

/// A site to be probed, and its consumer.
#[derive(Debug)]
pub struct Request {
    /// The file.
    pub file: PathBuf,
    /// Bytes from the start of the file to the instruction.
    pub offset: u64,
    /// The consumer that is called.
    pub consumer: Consumer,
    /// Use a trap even if a jump might fit.
    pub by_trap: bool,
    /// Bytes from the start of the file to a USDT semaphore: a 16-bit word of the file's data.
    pub semaphore: Option<u64>,
}

impl Request {
    /// A request for a jump where one fits.
    #[must_use]
    pub fn new(file: impl AsRef<Path>, offset: u64, consumer: Consumer) -> Self {
        Self { file: file.as_ref().to_owned(), offset, consumer, by_trap: false, semaphore: None }
    }
    /// Uses a trap even if a jump might fit.
    #[must_use]
    pub const fn by_trap(mut self) -> Self {
        self.by_trap = true;
        self
    }
    /// Increments a USDT semaphore while this site is active, in every mapping of the file; if the data is
    /// not mapped yet, as soon as it is. All consumers of a site must name the same one.
    #[must_use]
    pub const fn semaphore(mut self, offset: u64) -> Self {
        self.semaphore = Some(offset);
        self
    }
}
