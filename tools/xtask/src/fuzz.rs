//! Hostile bytes through every parser: the `fuzz` crate's own driver, deterministic, on the stable compiler.

use anyhow::Result;

use crate::{Outcome, cargo};

/// Runs each fuzz target for its share of `seconds`. A panic fails the step and prints the seed that brings it back.
pub(crate) fn run(seconds: u64) -> Result<Outcome> {
    let seconds = seconds.to_string();
    cargo(&["run", "--release", "--package", "trapline-fuzz", "--", "all", "--seconds", &seconds], &[])
}
