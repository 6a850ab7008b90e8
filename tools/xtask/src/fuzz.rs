//! Hostile bytes through every parser: the `fuzz` crate's own driver, deterministic, on the stable compiler.

use anyhow::Result;

use crate::cargo::cargo;
use crate::outcome::Outcome;

/// Runs each fuzz target for its share of `seconds`. A panic fails the step and prints the seed that brings it back. As a test of the whole
/// workspace, of which nothing is built twice.
pub(crate) fn run(seconds: u64) -> Result<Outcome> {
    cargo(
        &["test", "--release", "--workspace", "--test", "hostile", "--", "--nocapture"],
        &[("TRAPLINE_FUZZ_SECONDS", &seconds.to_string())],
    )
}
