//! Return trampolines of our own process, made once.

use trapline_plan::TrampolineCode;
use trapline_plan::x86_64::stub::own_trampoline_code_len;
use trapline_record::trampolines::Trampolines;

use super::Own;
use crate::error::PatchError;
use crate::own::trampolines::{OwnTrampolines, make};

impl Own {
    /// The return trampolines of this process. If there are none yet, it makes `count` of them, within the
    /// limits of [`Trampolines`]; `code` makes the code for them.
    ///
    /// # Errors
    /// If there is no room, or the system refuses. Nothing is mapped then.
    pub fn trampolines(
        &mut self,
        count: u32,
        code: impl FnOnce(&Trampolines) -> TrampolineCode,
    ) -> Result<OwnTrampolines, PatchError> {
        let made = match self.batches.own_trampolines {
            Some(made) => made,
            None => make(&self.process, count, own_trampoline_code_len, code)?,
        };
        self.batches.own_trampolines = Some(made);
        Ok(made.into())
    }
}
