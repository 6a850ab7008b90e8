//! The portable crates, and those with an arm64 twin, on arm64: cross-built here, their tests run under user-mode
//! emulation.
//!
//! In: how often the differential tests run each class of instructions. Out: the tests' own lines, counted like any
//! others. Emulated, not silicon: what the emulator does not model (caches, landing pads, a control stack) is not
//! tested. What cannot be built or run here is a skip by name, never a pass.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::cargo::cargo_path;
use crate::outcome::Outcome;
use crate::packages;
use crate::test::run_and_count;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
const EMULATOR: &str = "qemu-aarch64-static";
/// The distribution's compiler: the one that has a standard library for arm64.
const COMPILER: (&str, &str) = ("/usr/bin/rustc", "/usr/bin/rustdoc");
/// Crates with tests that run on arm64: those inside them, and those of [`TARGETS`].
const PORTABLE: &[&str] = &[
    "trapline-record",
    "trapline-insn",
    "trapline-code",
    "trapline-image",
    "trapline-plan",
    "trapline-runtime",
    "trapline-tracee",
    "trapline",
];
/// Their test programs that run there; the others run x86-64 code, or read this machine's x86-64 programs through tools
/// that would not be emulated.
const TARGETS: &[&str] = &[
    "--lib",
    "--test=native",
    "--test=interleavings",
    "--test=aarch64",
    "--test=aarch64_no_std",
    "--test=decode",
    "--test=relocate",
    "--test=patterns",
    "--test=stub_native_aarch64",
    "--test=trap_aarch64",
    "--test=hits",
    "--test=lookup",
    "--test=pool",
];
/// One that runs its tests one by one. Its forked children make threads, and the emulator (qemu 7.2) holds a lock of
/// its own while a thread is made. A child that is forked at such a moment waits for that lock for ever.
const ONE_BY_ONE: &str = "--test=inside_aarch64";
/// Those that only a whole system runs (`arm64-system`) are checked here, so that it finds them whole.
const BOOTED: &[&str] = &["--test=outside_aarch64", "--test=live"];
/// What an emulator of user mode has not, or has in another way: ptrace, perf, seals, times, other programs of this
/// machine. Outside attach runs under a whole system (`arm64-system`).
const NOT_EMULATED: &[&str] = &[
    "launch::tests::",
    "park::tests::",
    "follow::tests::",
    "find::tests::",
    "clock::tests::",
    "shared::tests::",
    "perf::breakpoint::",
    "perf::mappings::",
    "stacks::copied::",
    "cost::tests::",
    "all_cores_can_be_made_to_serialise",
    "nothing_that_is_mapped_is_replaced",
];

/// Runs the step.
pub(crate) fn run(runs: u64) -> Result<Outcome> {
    let missing = packages::ensure_arm64();
    if !missing.is_empty() {
        let why = format!("arm64: every test on arm64: packages {} are missing", missing.join(" "));
        println!("LOUD SKIP: {why}");
        return Ok(Outcome { skipped: vec![why], ..Outcome::default() });
    }
    let checked = cargo("check").args(["-p", "trapline", "-p", "trapline-watch"]).args(BOOTED).status()?;
    ensure!(checked.success(), "arm64: the tests of arm64-system do not build");
    let mut total = Outcome::default();
    println!("on {TARGET}, emulated");
    let skips = NOT_EMULATED.iter().flat_map(|name| ["--skip", name]);
    let end: Vec<&str> = ["--", "--show-output"].into_iter().chain(skips).collect();
    // One command, so that what they share is built once.
    total.add(run_and_count(tests(PORTABLE, TARGETS, runs, &end))?);
    total.add(run_and_count(tests(
        PORTABLE,
        &[ONE_BY_ONE],
        runs,
        &[&end[..], &["--test-threads=1"]].concat(),
    ))?);
    println!(
        "what a hit leaves alone, with vectors of 2048 bits: their state does not fit into a signal's usual frame"
    );
    let state = |cpu: &str, test: &str| {
        let mut command = tests(PORTABLE, &[test], runs, &["--", "--show-output", "state::"]);
        command.env(RUNNER, format!("{EMULATOR} -cpu {cpu}"));
        command
    };
    for test in ["--test=trap_aarch64", ONE_BY_ONE] {
        total.add(run_and_count(state("max,sve-default-vector-length=256", test))?);
    }
    println!("the same without scalable vectors, and without atomic additions");
    total.add(run_and_count(state("cortex-a57", ONE_BY_ONE))?);
    Ok(total)
}

/// Builds what [`run`] runs, if the packages for it are there or can be had.
pub(crate) fn build() -> Option<Command> {
    packages::ensure_arm64()
        .is_empty()
        .then(|| tests(PORTABLE, &[TARGETS, &[ONE_BY_ONE]].concat(), 0, &["--no-run"]))
}

/// Where it is built: a folder of its own, as another compiler would throw away what the usual one built.
pub(crate) fn folder() -> String {
    std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned()) + "/arm64"
}

/// `cargo test` for the target, with what is to stand at the end of the line.
pub(crate) fn tests(packages: &[&str], targets: &[&str], runs: u64, end: &[&str]) -> Command {
    let mut command = cargo("test");
    command
        .env("TRAPLINE_A64_RUNS", runs.to_string())
        // What takes words to verdicts is the same everywhere: `test` looks closer, and faster.
        .env("TRAPLINE_A64_STRIDE", "9973")
        .arg("--no-fail-fast")
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .args(targets)
        .args(end);
    command
}

/// This build is not shipped, and building it takes longer than its tests. What handles a hit is optimised, as a test
/// looks for panics in its code.
const PROFILE: [&str; 5] = [
    "profile.release.debug=0",
    "profile.release.opt-level=1",
    "profile.release.package.trapline-record.opt-level=3",
    "profile.release.package.trapline-insn.opt-level=3",
    "profile.release.package.trapline-runtime.opt-level=3",
];

/// `cargo` for the target.
pub(crate) fn cargo(verb: &str) -> Command {
    let mut command = Command::new(cargo_path());
    command
        .env("RUSTC", COMPILER.0)
        .env("RUSTDOC", COMPILER.1)
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env(RUNNER, EMULATOR)
        .args([verb, "--release", "--target", TARGET, "--target-dir", &folder()])
        .args(PROFILE.iter().flat_map(|line| ["--config", line]));
    command
}
