//! The measured process on arm64: there is none, since the bench counts instructions there.

use anyhow::{Result, bail};

/// Says so.
///
/// # Errors
///
/// Always.
pub fn run(_: &[String]) -> Result<()> {
    bail!("there is no victim for this processor: the bench counts instructions of code that it runs itself")
}
