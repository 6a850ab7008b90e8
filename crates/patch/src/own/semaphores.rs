//! USDT semaphores of our own process: adds one, or subtracts one.
//!
//! In: a word's address. Out: the word as it is now. Does not: know which consumer needs it counted, or
//! whether it is mapped (an unmapped word is an error). Other tracers count in the same word, hence add and
//! subtract. Two that do so in the same instant are not handled here, nor by the kernel.

use trapline_record::RemoteAddr;
use trapline_tracee::TargetError;

use crate::memory::semaphore;
use crate::own::Own;

impl Own {
    /// The word's present value.
    ///
    /// # Errors
    /// If it is not mapped.
    pub fn semaphore(&self, at: RemoteAddr) -> Result<u16, TargetError> {
        semaphore::read(self.process(), at)
    }
    /// Adds one, unless the word has its largest value. Returns the word as it is now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn raise(&self, at: RemoteAddr) -> Result<u16, TargetError> {
        let raised = self.semaphore(at)?.saturating_add(1);
        self.process().write_text(at, &raised.to_le_bytes())?;
        Ok(raised)
    }
    /// Subtracts one, unless the word is 0. Returns the word as it is now.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn lower(&self, at: RemoteAddr) -> Result<u16, TargetError> {
        let lowered = self.semaphore(at)?.saturating_sub(1);
        self.process().write_text(at, &lowered.to_le_bytes())?;
        Ok(lowered)
    }
}
