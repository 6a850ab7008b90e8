//! Our own running code as a [`CodeSpace`].
//!
//! In: addresses and bytes. Out: reads and writes through /proc/self/mem, core syncs by membarrier. No stops
//! have to be served: the guard handler serves traps. If /proc/self/mem refuses writes, pages are made
//! writable for the moment ([`protocol`](super::protocol)).

use trapline_record::RemoteAddr;
use trapline_tracee::{OwnCaller, Process};

use crate::native::cpu::proven;
use crate::space::{CodeSpace, SpaceError};

/// This process, running.
pub(super) struct Live<'a> {
    process: &'a Process,
}

impl<'a> Live<'a> {
    pub(super) const fn new(process: &'a Process) -> Self {
        Self { process }
    }
}

impl CodeSpace for Live<'_> {
    fn read(&mut self, at: RemoteAddr, into: &mut [u8]) -> Result<(), SpaceError> {
        Ok(self.process.read(at, into)?)
    }
    fn write(&mut self, at: RemoteAddr, bytes: &[u8]) -> Result<(), SpaceError> {
        self.process.write_text(at, bytes).or_else(|mem| OwnCaller::default().write_code(at, bytes, mem))?;
        Ok(())
    }
    fn takes_words(&self) -> bool {
        proven().words
    }
    fn takes_runs(&self) -> bool {
        proven().runs
    }
    fn sync(&mut self) -> Result<(), SpaceError> {
        Ok(OwnCaller::default().sync_cores()?)
    }
    fn serve(&mut self) -> Result<(), SpaceError> {
        Ok(())
    }
}
