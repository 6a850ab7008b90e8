//! Attach and detach, over and over, while eight threads run the functions concerned and signals and thread births
//! go on. The test itself is `under_fire` in `tests`; here it runs for longer.

use anyhow::Result;

use crate::cargo::cargo;
use crate::outcome::Outcome;

/// Runs this many full attach/detach cycles by separate processes.
pub(crate) fn run(cycles: u64) -> Result<Outcome> {
    let cycles = cycles.to_string();
    // Of the whole workspace: alone, the package would be built once more, with fewer features.
    cargo(
        &["test", "--release", "--workspace", "--test", "under_fire", "--", "--nocapture"],
        &[("TRAPLINE_STRESS_CYCLES", &cycles)],
    )
}
