//! Return trampolines of our own process, made once.

use trapline_plan::SlotCode;
use trapline_plan::aarch64::stub::landing_code_len;
use trapline_record::slots::Slots;
use trapline_tracee::OwnCaller;

use super::Own;
use crate::error::PatchError;
use crate::own_slots::{OwnSlots, make};

impl Own {
    /// The return trampolines of this process. If there are none yet, it makes `count` of them, within the
    /// limits of [`Slots`]. `code` makes their code, whose calls lead to the gate at the given address.
    ///
    /// # Errors
    /// If there is no room, or the system refuses. Nothing is mapped then.
    pub fn slots(
        &mut self,
        count: u32,
        code: impl FnOnce(&Slots, u64) -> SlotCode,
    ) -> Result<OwnSlots, PatchError> {
        let made = match self.slots {
            Some(made) => made,
            None => {
                let made = make(&self.process, count, landing_code_len, |slots| code(slots, self.gate))?;
                // No thread has fetched from there, but one may have fetched from what was there before.
                OwnCaller::default().sync_cores()?;
                made
            }
        };
        self.slots = Some(made);
        Ok(made.into())
    }
}
