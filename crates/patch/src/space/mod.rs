//! Code that threads are running, as something that can be read and written a few bytes at a time.
//!
//! In: addresses and bytes. Out: bytes, or why not. There are two users: a live process, and a vector of
//! bytes in tests. So the order of writes and every failure in between is tested without a process.
//! Does not: know what a patch is.

pub(crate) mod change;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod proven;
pub(crate) mod remote;
pub(crate) mod run;
pub(crate) mod soft;
pub(crate) mod write;
#[cfg(test)]
pub(crate) mod write_tests;

use trapline_record::RemoteAddr;
use trapline_tracee::TargetError;

use crate::error::PatchError;
use crate::native::cpu::proven;

/// Bytes of a cache line: the unit within which one write is seen whole.
pub(crate) const LINE: u64 = 64;

/// Why a write or read could not be done.
#[derive(Debug)]
pub(crate) enum SpaceError {
    /// Only this place failed: it is not mapped any more, or not writable.
    Place(TargetError),
    /// The process ended or runs another program; nothing more can be done (PATCH-12).
    Gone(TargetError),
}

impl SpaceError {
    pub(crate) fn into_error(self) -> PatchError {
        match self {
            Self::Place(error) | Self::Gone(error) => error.into(),
        }
    }
}

impl From<TargetError> for SpaceError {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Memory { .. } => Self::Place(error),
            _ => Self::Gone(error),
        }
    }
}

/// Code that is being changed.
pub(crate) trait CodeSpace {
    /// Reads present bytes.
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError>;
    /// Makes a window that was read look as if no traps of ours stood in it at the moment.
    fn look_past_traps(&self, at: RemoteAddr, bytes: &mut [u8]) {
        let _ = (at, bytes);
    }
    /// Makes one write (PATCH-5). If [`takes_words`](Self::takes_words): of one word inside one line, which
    /// every thread sees whole or not at all. If [`takes_runs`](Self::takes_runs): of aligned words inside
    /// one page, each seen whole or not at all.
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError>;
    /// Makes a write of aligned words of which any part may be seen before another.
    #[allow(dead_code, reason = "for windows that change in steps, which not every processor has")]
    fn write_parts(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.write(at, bytes)
    }
    /// Whether a write of one word inside one line is seen whole or not at all.
    fn takes_words(&self) -> bool;
    /// Whether a running thread would see it so. If not, an earlier writer may have written here in steps.
    fn proves_words(&self) -> bool {
        proven().words
    }
    /// Whether such a write may be longer than a word.
    fn takes_runs(&self) -> bool;
    /// Returns when every CPU that runs this code has serialised since the call.
    #[allow(dead_code, reason = "for windows that change in steps, which not every processor has")]
    fn sync(&mut self) -> Result<(), SpaceError>;
    /// Answers threads that stopped meanwhile.
    fn serve(&mut self) -> Result<(), SpaceError>;
}
