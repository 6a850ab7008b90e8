//! Code that threads are running, as something that can be read and written a few bytes at a time.
//!
//! In: addresses and bytes. Out: bytes, or why not. There are two users: a live process, and a vector of
//! bytes in tests. So the order of writes and every failure in between is tested without a process.
//! Does not: know what a patch is.

pub(crate) mod cpu;
#[cfg(test)]
mod fake;
mod run;
pub(crate) mod soft;
pub(crate) mod staged;
pub(crate) mod write;

use trapline_record::RemoteAddr;
use trapline_tracee::{Batch, Process, RemoteOptions, TargetError};

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
    pub(crate) fn into_error(self) -> crate::PatchError {
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
    fn write_parts(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.write(at, bytes)
    }
    /// Whether a write of one word inside one line is seen whole or not at all.
    fn takes_words(&self) -> bool;
    /// Whether a running thread would see it so. If not, an earlier writer may have written here in steps.
    fn proves_words(&self) -> bool {
        crate::space::cpu::proven().words
    }
    /// Whether such a write may be longer than a word.
    fn takes_runs(&self) -> bool;
    /// Returns when every CPU that runs this code has serialised since the call.
    fn sync(&mut self) -> Result<(), SpaceError>;
    /// Answers threads that stopped meanwhile.
    fn serve(&mut self) -> Result<(), SpaceError>;
}

/// A seized process whose threads run.
pub(crate) struct Running<'a, 'b, 'p> {
    /// The seizure.
    pub(crate) batch: &'a mut Batch<'p>,
    /// Returns where a thread that trapped goes on.
    pub(crate) guard: &'b dyn Fn(u64) -> Option<u64>,
    /// How to choose the thread that serialises the others.
    pub(crate) remote: &'b RemoteOptions,
}

impl CodeSpace for Running<'_, '_, '_> {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        Ok(self.batch.process().read(at, into)?)
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        Ok(self.batch.process().write_text(at, bytes)?)
    }
    fn takes_words(&self) -> bool {
        crate::space::cpu::proven().words
    }
    fn takes_runs(&self) -> bool {
        crate::space::cpu::proven().runs
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        let mut caller = self.batch.remote(self.remote, self.guard)?;
        caller.sync_cores()?;
        caller.finish()?;
        Ok(())
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        self.batch.serve(self.guard)?;
        Ok(())
    }
}

/// A process whose threads are all stopped. It needs no core sync (threads serialise when they resume), and
/// no stop has to be answered.
pub(crate) struct Still<'a> {
    /// The process.
    pub(crate) process: &'a Process,
}

impl CodeSpace for Still<'_> {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        Ok(self.process.read(at, into)?)
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        Ok(self.process.write_text(at, bytes)?)
    }
    fn takes_words(&self) -> bool {
        true
    }
    fn takes_runs(&self) -> bool {
        true
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        Ok(())
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        Ok(())
    }
}
