//! Hostile bytes through every parser: the `fuzz` crate's own driver, deterministic, on the stable compiler. And random
//! programs through the compiler.

use anyhow::Result;

use crate::cargo::cargo;
use crate::outcome::Outcome;

/// Runs each fuzz target for its share of `seconds`. A panic fails the step and prints the seed that brings it back. As
/// a test of the whole workspace, of which nothing is built twice.
pub(crate) fn run(seconds: u64) -> Result<Outcome> {
    cargo(
        &["test", "--release", "--workspace", "--test", "hostile", "--", "--nocapture"],
        &[("TRAPLINE_FUZZ_SECONDS", &seconds.to_string())],
    )
}

/// Runs random programs for so many `seconds`: their code beside the interpreter (CODE-1). A difference fails the
/// step and prints the seed.
pub(crate) fn programs(seconds: u64) -> Result<Outcome> {
    cargo(
        &["test", "--release", "--workspace", "--test", "native", "--", "--nocapture"],
        &[("TRAPLINE_CODE_SECONDS", &seconds.to_string())],
    )
}
