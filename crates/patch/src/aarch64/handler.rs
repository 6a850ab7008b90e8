//! No handler serves traps in another process here: no patch needs any.

use trapline_plan::ModulePlan;

use crate::install::handler::Installed;
use crate::signals::SERVED;

/// There is none.
pub(crate) const fn handler(_: u64, _: u64) -> Option<(Vec<u8>, Installed)> {
    None
}

/// It has nothing to serve.
pub(crate) const fn signals(_: &[ModulePlan]) -> [bool; SERVED.len()] {
    [false; SERVED.len()]
}
