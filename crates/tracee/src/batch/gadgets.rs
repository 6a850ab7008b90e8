//! The code of the target that remote calls go through, found once.
//!
//! Input: a process and its maps. Output: gadgets. Invariant: what is returned lies unchanged in the target at
//! that time; otherwise it is looked for again. Does not: make calls.

use crate::error::TargetError;
use crate::gadget::Gadgets;
use crate::maps::Mapping;
use crate::process::Process;

/// The gadgets of one process, as they were last found.
#[derive(Debug, Default)]
pub(super) struct KnownGadgets {
    found: Option<Gadgets>,
}

impl KnownGadgets {
    /// Gadgets, checked to be unchanged in the target, or found anew.
    pub(super) fn get(&mut self, process: &Process, maps: &[Mapping]) -> Result<Gadgets, TargetError> {
        if let Some(found) = self.found.filter(|found| found.hold(process)) {
            return Ok(found);
        }
        let found = Gadgets::find(process, maps)?;
        self.found = Some(found);
        Ok(found)
    }
}
