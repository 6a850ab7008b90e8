//! The in-process engine under AddressSanitizer: every test of `trapline::inside`, and the storm for as long as asked.
//!
//! In: seconds. Out: the tests' own lines, counted; those that are left out, with the reason, as skips. The sanitizer
//! is the toolchain's own: `-Zsanitizer` is for nightly compilers, and for those that are set to take such flags.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cargo::cargo_path;
use crate::outcome::Outcome;
use crate::test;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Tests that cannot run under the sanitizer, and why. Five at most.
const EXCLUDED: &[(&str, &str)] = &[
    ("leaves::a_thread_that_ends_in_a_handler_delays_no_other", NO_CLEAN_UP),
    ("leaves::a_thread_in_the_place_of_one_that_ended_in_a_handler_delays_no_other", NO_CLEAN_UP),
];
const NO_CLEAN_UP: &str = "a thread ends without the C library's clean-up, and the sanitizer gives up on the next one that gets its place";

/// Runs the step.
pub(crate) fn run(seconds: u64) -> Result<Outcome> {
    let mut command = sanitized();
    command
        // Probes, and the words of the tests' handlers, stay for good. A hit is known by where it is on the stack: no
        // frames on the heap.
        .env("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0")
        .env("TRAPLINE_STORM_SECONDS", seconds.to_string())
        .env("TRAPLINE_COMBINATIONS_STRIDE", "15")
        .args(["--", "--show-output"]);
    for (name, _) in EXCLUDED {
        command.args(["--skip", name]);
    }
    let mut outcome = test::run_and_count(command)?;
    outcome
        .skipped
        .extend(EXCLUDED.iter().map(|(name, why)| format!("under AddressSanitizer: {name}: {why}")));
    Ok(outcome)
}

/// Builds what [`run`] runs.
pub(crate) fn build() -> Command {
    let mut command = sanitized();
    command.arg("--no-run");
    command
}

/// `cargo test` under the sanitizer, to which arguments may be added.
fn sanitized() -> Command {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let mut command = Command::new(cargo_path());
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", format!("{flags} -Zsanitizer=address"))
        // Checks at each access hide what more would gain, and take their time to build.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .args(["test", "--release", "--target", TARGET, "--target-dir"])
        // Its own folder: other flags would rebuild everything.
        .arg(target.join("asan"))
        .args(["--package", "trapline", "--test", "inside"]);
    command
}

#[cfg(test)]
mod tests {
    use super::EXCLUDED;

    #[test]
    fn few_are_left_out_each_with_its_reason() {
        assert!(EXCLUDED.len() <= 5 && EXCLUDED.iter().all(|(name, why)| !name.is_empty() && why.len() > 20));
    }
}
