//! The code of the handler that serves guard traps in another process.
//!
//! In: where it is to lie. Out: its bytes, and which signals it is for. Does not: set actions (see
//! `install::handler`).

use trapline_plan::ModulePlan;
use trapline_plan::x86_64::stub::trap_handler;

use super::traps::INT3;
use crate::install::handler::Installed;
use crate::signals::SERVED;

/// Code of a handler at an address, for the control block of the first segment. `None` if patches need none.
#[allow(clippy::unnecessary_wraps, reason = "its twin has none")]
pub(crate) fn handler(at: u64, control: u64) -> Option<(Vec<u8>, Installed)> {
    let mut code = Vec::new();
    let made = trap_handler(&mut code, at, control);
    Some((code, Installed::new(made.entry, made.restorer)))
}

/// Which signals the handler has to serve, in the order of [`SERVED`]: SIGTRAP; SIGILL if a displacement holds
/// bytes that are no instruction; SIGSEGV and SIGBUS if code of ours may fault.
pub(crate) fn signals(plans: &[ModulePlan]) -> [bool; SERVED.len()] {
    let illegal = plans.iter().any(|plan| plan.k.to_le_bytes() != [INT3; 4]);
    let faults = plans.iter().any(|plan| !plan.fixups.is_empty());
    [true, illegal, faults, faults]
}
