//! USDT semaphores of our own: one more, one less.
//!
//! In: a word's address. Out: the word as it is now. Does not: know who wants it counted, or whether it is mapped (a word that is not is an
//! error). Other tracers count in the same word, hence add and subtract; that two do so in the same instant is nobody's case, the
//! kernel's neither.

use trapline_record::RemoteAddr;
use trapline_target::TargetError;

use crate::own::Own;

impl Own {
    /// The word.
    ///
    /// # Errors
    /// It is not mapped.
    pub fn semaphore(&self, at: RemoteAddr) -> Result<u16, TargetError> {
        let mut bytes = [0; 2];
        self.process().read(at, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }
    /// Adds one. The word now; one that is full stays.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn raise(&self, at: RemoteAddr) -> Result<u16, TargetError> {
        let raised = self.semaphore(at)?.saturating_add(1);
        self.process().write_text(at, &raised.to_le_bytes())?;
        Ok(raised)
    }
    /// Takes one away. The word now; one that is 0 stays.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn lower(&self, at: RemoteAddr) -> Result<u16, TargetError> {
        let lowered = self.semaphore(at)?.saturating_sub(1);
        self.process().write_text(at, &lowered.to_le_bytes())?;
        Ok(lowered)
    }
}
