//! No window changes in steps: each is one word, which one write covers.

use trapline_record::journal::Entry;

use crate::space::change::{Direction, Outcome};
use crate::space::{CodeSpace, SpaceError};

/// Changes the windows of `group`, which is empty.
#[allow(clippy::unnecessary_wraps, reason = "its twin may fail")]
pub(crate) fn change_staged(
    _: &mut impl CodeSpace,
    _: &[Entry],
    group: &[usize],
    _: Direction,
    _: &mut [Outcome],
) -> Result<(), SpaceError> {
    debug_assert!(group.is_empty(), "a word changes at once");
    Ok(())
}
