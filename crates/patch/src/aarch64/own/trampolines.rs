//! Return trampolines of our own process, made once.

use trapline_plan::TrampolineCode;
use trapline_plan::aarch64::stub::own_trampoline_code_len;
use trapline_record::trampolines::Trampolines;
use trapline_tracee::OwnCaller;

use super::Own;
use crate::error::PatchError;
use crate::own::trampolines::{OwnTrampolines, make};

impl Own {
    /// The return trampolines of this process. If there are none yet, it makes `count` of them, within the
    /// limits of [`Trampolines`]. `code` makes their code, which calls the gate at the given address.
    ///
    /// # Errors
    /// If there is no room, or the system refuses. Nothing is mapped then.
    pub fn trampolines(
        &mut self,
        count: u32,
        code: impl FnOnce(&Trampolines, u64) -> TrampolineCode,
    ) -> Result<OwnTrampolines, PatchError> {
        let made = match self.trampolines {
            Some(made) => made,
            None => {
                let made = make(&self.process, count, own_trampoline_code_len, |trampolines| {
                    code(trampolines, self.gate)
                })?;
                // No thread has fetched from there, but one may have fetched from what was there before.
                OwnCaller::default().sync_cores()?;
                made
            }
        };
        self.trampolines = Some(made);
        Ok(made.into())
    }
}
