//! Slots of our own process, made once.

use trapline_plan::SlotCode;
use trapline_plan::aarch64::stub::landing_code_len;
use trapline_record::slots::Slots;
use trapline_target::OwnCaller;

use super::Own;
use crate::error::PatchError;
use crate::own_slots::{OwnSlots, make};

impl Own {
    /// The slots of this process, made if there are none yet: `count`, in the limits of [`Slots`]. `code` makes what lies at them, which calls lead to the gate at the address that it is
    /// given.
    ///
    /// # Errors
    /// When there is no room, or the system refuses. Nothing is mapped then.
    pub fn slots(
        &mut self,
        count: u32,
        code: impl FnOnce(&Slots, u64) -> SlotCode,
    ) -> Result<OwnSlots, PatchError> {
        let made = match self.slots {
            Some(made) => made,
            None => {
                let made = make(&self.process, count, landing_code_len, |slots| code(slots, self.gate))?;
                // Nobody has fetched from there, but may have from what was there before.
                OwnCaller::default().sync_cores()?;
                made
            }
        };
        self.slots = Some(made);
        Ok(made.into())
    }
}
