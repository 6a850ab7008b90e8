//! Every test of the workspace, with the runner's own lines shown, then what was skipped.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use crate::tally::Tally;
use crate::{Outcome, cargo, cargo_path, packages, redis};

/// Builds the command first (tests run it as users do), then runs all tests. Arguments after `--` go to libtest,
/// those before it to cargo.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    packages::ensure();
    let build = cargo(&["build", "--release", "--workspace", "--bins"], &[])?;
    if build.failed > 0 {
        return Ok(build);
    }
    let split = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let (for_cargo, for_tests) = (&args[..split], args.get(split + 1..).unwrap_or_default());
    let mut command = Command::new(cargo_path());
    command.args(["test", "--release", "--no-fail-fast"]);
    if let Some(redis) = redis::ensure() {
        command.env(redis::VARIABLE, redis);
    }
    if !for_cargo.iter().any(|arg| arg == "-p") {
        command.arg("--workspace");
    }
    // Output of passing tests is shown: figures, hit totals and reasons of skips stand in it.
    command.args(for_cargo).args(["--", "--show-output"]).args(for_tests);
    run_and_count(command)
}

/// Runs a test command; its lines are shown as they come, and counted.
pub(crate) fn run_and_count(mut command: Command) -> Result<Outcome> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo test")?;
    let mut tally = Tally::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.context("reading the tests' output")?;
            println!("{line}");
            tally.line(&line);
        }
    }
    let status = child.wait().context("cargo test")?;
    println!("{} test binaries", tally.binaries());
    let mut outcome = tally.outcome();
    if !status.success() && outcome.failed == 0 {
        // A test binary that did not build, or died before its closing line.
        outcome.failed = 1;
    }
    Ok(outcome)
}
