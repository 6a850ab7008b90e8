//! Every test of the workspace, with the runner's own lines shown, then what was skipped.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::cargo::{cargo, cargo_path};
use crate::outcome::Outcome;
use crate::tally::Tally;
use crate::{descendants, packages, perfetto, python, redis, unsteady};

/// Longer than any test, and than any build between two of cargo's lines that go elsewhere.
const SILENCE: Duration = Duration::from_secs(900);

/// Builds all tests of the workspace, and the command, which they run as users do.
pub(crate) fn build() -> Result<Outcome> {
    packages::ensure();
    cargo(&["test", "--no-run", "--release", "--workspace"], &[])
}

/// Builds everything first, then runs all tests. Arguments after `--` go to libtest, those before it to cargo.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    packages::ensure();
    let split = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let (for_cargo, for_tests) = (&args[..split], args.get(split + 1..).unwrap_or_default());
    let whole = !for_cargo.iter().any(|arg| arg == "-p");
    // With the tests' features where all are run, so that nothing is built twice.
    let built = if whole { build() } else { cargo(&["build", "--bins", "--release", "--workspace"], &[]) }?;
    if built.failed > 0 {
        return Ok(built);
    }
    let mut command = Command::new(cargo_path());
    command.args(["test", "--release", "--no-fail-fast"]);
    if let Some(redis) = redis::ensure() {
        command.env(redis::VARIABLE, redis);
    }
    if let Some(python) = perfetto::ensure() {
        command.env(perfetto::VARIABLE, python);
    }
    if whole {
        command.arg("--workspace");
    }
    // Output of passing tests is shown: figures, hit totals and reasons of skips stand in it.
    command.args(for_cargo).args(["--", "--show-output"]).args(for_tests);
    let mut outcome = run_and_count(command)?;
    if whole && for_tests.is_empty() {
        outcome.add(python::run(&[])?);
    }
    Ok(outcome)
}

/// Runs a test command and counts; what failed is run once more by itself (see [`unsteady`]).
pub(crate) fn run_and_count(mut command: Command) -> Result<Outcome> {
    let (first, names) = run_once(&mut command)?;
    let Some(mut alone) = unsteady::alone(&command, &first, &names) else { return Ok(first) };
    println!("\nonce more, alone: {}", names.join(" "));
    let (second, _) = run_once(&mut alone)?;
    Ok(unsteady::judge(first, &second))
}

/// Runs a test command; its lines are shown as they come, and counted. Errors come through the same pipe: cargo names
/// the binaries there. It is over when the command is, even if another process still holds its output; after
/// [`SILENCE`] it counts as stuck, and is ended with all that it started. What it came to, and the names of tests that
/// failed.
fn run_once(command: &mut Command) -> Result<(Outcome, Vec<String>)> {
    let (output, writer) = std::io::pipe().context("a pipe")?;
    command.stdout(writer.try_clone().context("a pipe")?).stderr(writer);
    let mut child = command.spawn().context("cargo test")?;
    // The command holds the pipe's other end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    let mut tally = Tally::default();
    let mut last = Instant::now();
    let status = loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => {
                if tally.line(&line) {
                    println!("{line}");
                }
                last = Instant::now();
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            // It closed its output: all lines were read.
            Err(RecvTimeoutError::Disconnected) => break child.wait().context("cargo test")?,
        }
        if let Some(status) = child.try_wait().context("cargo test")? {
            break status;
        }
        if last.elapsed() > SILENCE {
            println!("no line for {} s: ended as stuck", SILENCE.as_secs());
            descendants::kill(child.id());
            child.kill().ok();
            break child.wait().context("cargo test")?;
        }
    };
    println!("{} test binaries", tally.binaries());
    let names = tally.failed_tests().to_vec();
    let mut outcome = tally.outcome();
    if !status.success() && outcome.failed == 0 {
        // A test binary that did not build, or died before its closing line.
        outcome.failed = 1;
    }
    Ok((outcome, names))
}
