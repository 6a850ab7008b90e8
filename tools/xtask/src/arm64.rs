//! The portable crates, and those with an arm64 twin, on arm64: cross-built here, their tests run under user-mode emulation.
//!
//! In: how often the differential tests run each class of instructions. Out: the tests' own lines, counted like any others.
//! Emulated, not silicon: what the emulator does not model (caches, landing pads, a control stack) is not tested.
//! What cannot be built or run here is a skip by name, never a pass.

use std::process::Command;

use anyhow::Result;

use crate::test::run_and_count;
use crate::{Outcome, cargo_path, packages};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
const EMULATOR: &str = "qemu-aarch64-static";
/// The distribution's compiler: the one that has a standard library for arm64.
const COMPILER: (&str, &str) = ("/usr/bin/rustc", "/usr/bin/rustdoc");
/// Crates that build for arm64, and their test targets there: all, if none is named. The others run x86-64 code, or read this
/// machine's x86-64 programs through tools that would not be emulated.
const PORTABLE: &[(&str, &[&str])] = &[
    ("trapline-record", &[]),
    (
        "trapline-insn",
        &["--lib", "--test=aarch64", "--test=aarch64_no_std", "--test=decode", "--test=relocate"],
    ),
    ("trapline-image", &["--lib", "--test=patterns"]),
    ("trapline-plan", &["--lib", "--test=stub_native_aarch64"]),
    ("trapline-runtime", &["--lib", "--test=trap_aarch64", "--test=hits", "--test=lookup", "--test=pool"]),
    ("trapline", &["--lib", "--test=inside_aarch64"]),
];

/// Runs the step.
pub(crate) fn run(runs: u64) -> Result<Outcome> {
    let missing = packages::ensure_arm64();
    if !missing.is_empty() {
        let why = format!("arm64: every test on arm64: packages {} are missing", missing.join(" "));
        println!("LOUD SKIP: {why}");
        return Ok(Outcome { skipped: vec![why], ..Outcome::default() });
    }
    let mut total = Outcome::default();
    for (package, targets) in PORTABLE {
        println!("{package} on {TARGET}, emulated");
        total.add(run_and_count(tests(package, targets, runs, &["--", "--show-output"]))?);
    }
    println!(
        "trapline-runtime with vectors of 2048 bits, whose state does not fit into a signal's usual frame"
    );
    let mut long =
        tests("trapline-runtime", &["--test=trap_aarch64"], runs, &["--", "--show-output", "state::"]);
    long.env(RUNNER, format!("{EMULATOR} -cpu max,sve-default-vector-length=256"));
    total.add(run_and_count(long)?);
    Ok(total)
}

/// Where it is built: a folder of its own, as another compiler would throw away what the usual one built.
pub(crate) fn folder() -> String {
    std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned()) + "/arm64"
}

/// `cargo test` for the target, with what is to stand at the end of the line.
pub(crate) fn tests(package: &str, targets: &[&str], runs: u64, end: &[&str]) -> Command {
    let mut command = Command::new(cargo_path());
    command
        .env("RUSTC", COMPILER.0)
        .env("RUSTDOC", COMPILER.1)
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env(RUNNER, EMULATOR)
        .env("TRAPLINE_A64_RUNS", runs.to_string())
        // What takes words to verdicts is the same everywhere: `test` looks closer, and faster.
        .env("TRAPLINE_A64_STRIDE", "9973")
        .args(["test", "--release", "--no-fail-fast", "--target", TARGET, "--target-dir", &folder()])
        .args(["-p", package])
        .args(targets)
        .args(end);
    command
}
