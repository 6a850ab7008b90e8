//! What a signal's action needs on arm64: the address that its handler returns to.
//!
//! In: nothing. Out: an address and a flag.
//! Does not: install anything (`trap::signals`).

pub use crate::trap::signals::{DEFAULT, IGNORE, SignalAction, flags};
pub(crate) use crate::trap::signals::{MaskChange, action, mask, raise, set_action};

/// No flag: handlers return to the vDSO's own rt_sigreturn, which unwinders recognize.
pub(crate) const RESTORER: u64 = 0;

/// The address that our handlers return to: 0, so that the kernel chooses.
pub(crate) const fn restorer() -> u64 {
    0
}
