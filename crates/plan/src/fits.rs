//! Whether a hit's program has code.
//!
//! In: a program. Out: nothing, or why not. Both processors are asked, so that what runs does not depend on the machine.
//! Does not: make code.

use trapline_code::NoCode;

use crate::hit::HitProgram;
use crate::{aarch64, x86_64};

/// Whether stubs have enough registers and stack words for a program.
///
/// # Errors
/// They have not, on some processor.
pub fn fits(hit: &HitProgram) -> Result<(), NoCode> {
    x86_64::stub::run::allocated(hit)?;
    aarch64::stub::run::allocated(hit)?;
    Ok(())
}
