//! No window changes in steps: each is one word, which one write covers.

use trapline_record::journal::Entry;

use crate::space::change::{Direction, Outcome};
use crate::space::{CodeSpace, SpaceError};

/// Number of writes to a window.
pub(crate) const STEPS: usize = 1;

/// Changes the windows of `steps`, which is empty.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) fn change_steps(
    _: &mut impl CodeSpace,
    _: &[Entry],
    steps: &mut [(usize, u8)],
    _: Direction,
    _: &mut [Outcome],
) -> Result<(), SpaceError> {
    debug_assert!(steps.is_empty(), "a word changes at once");
    Ok(())
}
