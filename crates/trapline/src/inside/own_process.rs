//! The own process, and the writer of its code.
//!
//! In: nothing. Out: the writer ([`Own`]), opened when it is needed first. Invariants: INS-4 what it gives is
//! of this process, in a forked child too. Does not: decide what is written (`patcher`).

use trapline_patch::PatchError;
use trapline_patch::own::Own;
use trapline_tracee::Mapping;

use super::Error;
use super::traps::sites;

/// The own process, once it was opened.
#[derive(Debug, Default)]
pub(super) struct OwnProcess(Option<Own>);

impl OwnProcess {
    /// The own process; in a forked child it is opened anew.
    pub(super) fn open(&mut self) -> Result<&mut Own, Error> {
        if self.0.is_none() {
            self.0 = Some(Own::open(sites().ok_or(Error::NoEngine)?.windows())?);
        }
        // It was set just above.
        let own = self.0.as_mut().ok_or(Error::NoEngine)?;
        if own.is_inherited() {
            own.disinherit()?;
        }
        Ok(own)
    }
    /// The same, if it was opened.
    pub(super) const fn opened(&self) -> Option<&Own> {
        self.0.as_ref()
    }
    /// All mappings, as the system states them now.
    pub(super) fn maps(&mut self) -> Result<Vec<Mapping>, Error> {
        Ok(self.open()?.process().maps().map_err(PatchError::from)?)
    }
}
