//! What all batches have in common.
//!
//! In: the own process. Out: a [`Setting`]. Does not: plan.

use crate::inside::own_process::OwnProcess;
use crate::inside::{Error, traps};

/// What all batches have in common.
#[derive(Clone, Copy, Debug)]
pub(in crate::inside) struct Setting {
    /// Calls are guarded by a second stack; not yet known of any program here.
    pub(in crate::inside) shadow_stack: bool,
}

impl Setting {
    /// Settings for all batches from now on; the handlers are installed.
    pub(in crate::inside) fn new(process: &mut OwnProcess, _: bool) -> Result<Self, Error> {
        traps::serve()?;
        process.open()?;
        Ok(Self { shadow_stack: false })
    }
}
