//! Return trampolines of our own process, made once.

use trapline_plan::SlotCode;
use trapline_plan::x86_64::stub::landing_code_len;
use trapline_record::slots::Slots;

use super::Own;
use crate::error::PatchError;
use crate::own_slots::{OwnSlots, make};

impl Own {
    /// The return trampolines of this process. If there are none yet, it makes `count` of them, within the
    /// limits of [`Slots`]; `code` makes the code for them.
    ///
    /// # Errors
    /// If there is no room, or the system refuses. Nothing is mapped then.
    pub fn slots(
        &mut self,
        count: u32,
        code: impl FnOnce(&Slots) -> SlotCode,
    ) -> Result<OwnSlots, PatchError> {
        let made = match self.attached.own_slots {
            Some(made) => made,
            None => make(&self.process, count, landing_code_len, code)?,
        };
        self.attached.own_slots = Some(made);
        Ok(made.into())
    }
}
