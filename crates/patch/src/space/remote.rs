//! The code of another process, which its threads run or are stopped in.
//!
//! In: a process, seized or stopped. Out: a [`CodeSpace`]. Does not: stop or resume threads.

use trapline_record::RemoteAddr;
use trapline_tracee::{Batch, Process, RemoteOptions};

use crate::native::cpu::proven;
use crate::space::{CodeSpace, SpaceError};

/// How a seized process is treated.
#[derive(Clone, Copy)]
pub(crate) struct Seizure<'a> {
    /// Returns where a thread that trapped goes on.
    pub(crate) guard: &'a dyn Fn(u64) -> Option<u64>,
    /// How to choose the thread that makes our calls.
    pub(crate) remote: &'a RemoteOptions,
}

/// A seized process; its threads run.
pub(crate) struct Running<'a, 'p> {
    pub(crate) batch: &'a mut Batch<'p>,
    pub(crate) seizure: Seizure<'a>,
}

impl CodeSpace for Running<'_, '_> {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        Ok(self.batch.process().read(at, into)?)
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        Ok(self.batch.process().write_text(at, bytes)?)
    }
    fn takes_words(&self) -> bool {
        proven().words
    }
    fn takes_runs(&self) -> bool {
        proven().runs
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        let mut caller = self.batch.remote(self.seizure.remote, self.seizure.guard)?;
        caller.sync_cores()?;
        caller.finish()?;
        Ok(())
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        self.batch.serve(self.seizure.guard)?;
        Ok(())
    }
}

/// A process; its threads are all stopped. It needs no core sync (threads serialise when they resume), and no
/// stop has to be answered.
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
