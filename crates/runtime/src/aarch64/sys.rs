//! What a signal's action needs on arm64: where its handler returns to.
//!
//! In: nothing. Out: an address and a flag. Does not: install anything (`trap::signals`).

pub use crate::trap::signals::{Action, DEFAULT, IGNORE, flags};
pub(crate) use crate::trap::signals::{How, action, mask, raise, set_action};

/// None: handlers return to the vDSO's own rt_sigreturn, which unwinders know.
pub(crate) const RESTORER: u64 = 0;

/// Where our handlers return to: the kernel's choice.
pub(crate) const fn restorer() -> u64 {
    0
}
