//! What all batches have in common.
//!
//! In: the own process, and what is going on in it. Out: a [`Setting`]. Does not: plan.

use trapline_patch::PatchError;
use trapline_plan::{ExtendedState, InlinedPath};
use trapline_runtime::native::standing;
use trapline_runtime::x86_64::general::inlined as runtime;

use crate::inside::own_process::OwnProcess;
use crate::inside::{Error, loader, traps};

/// What all batches have in common.
#[derive(Clone, Copy, Debug)]
pub(in crate::inside) struct Setting {
    pub(super) state: ExtendedState,
    /// Every fault of displaced code is shown at its original address. Then code that may fault can be
    /// displaced, even if a handler looks the address up.
    pub(super) shows_originals: bool,
    pub(in crate::inside) shadow_stack: bool,
    /// No thread may be made to help: a thread that waits for this one may hold the loader's lock.
    pub(super) alone: bool,
}

impl Setting {
    /// Settings for all batches from now on; the handlers are installed. `looking`: a look is going on for
    /// which a thread in the loader may wait.
    pub(in crate::inside) fn new(process: &mut OwnProcess, looking: bool) -> Result<Self, Error> {
        let state = extended_state()?;
        traps::serve()?;
        let process = process.open()?.process();
        let status = process.status().map_err(PatchError::from)?;
        let in_the_loader = loader::is_above(process);
        let (shows_originals, shadow_stack) = (standing(), status.shadow_stack);
        Ok(Self { state, shows_originals, shadow_stack, alone: in_the_loader || looking })
    }
}

/// Which extended state is saved around consumers.
pub(super) fn extended_state() -> Result<ExtendedState, Error> {
    let state = trapline_tracee::ExtendedState::here().ok_or(Error::NoExtendedState)?;
    Ok(ExtendedState { mask: state.mask, len: state.len, shows_use: state.shows_use })
}

/// An inlined fast path, in the planner's form.
pub(super) const fn inlined(path: runtime::InlinedPath) -> InlinedPath {
    InlinedPath { text: path.text, room: path.room }
}
