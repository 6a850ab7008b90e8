//! arm64 under a whole system: the distribution's own kernel, booted in an emulator, with our tests as its only programs.
//!
//! In: the distribution's kernel and shell for arm64, which are fetched and not installed. Out: the tests' lines, counted like any others;
//! for each way to do a hit, instructions and exceptions. Two boots: one for the tests (all processors at once), one for
//! figures (one processor, which counts instructions exactly). Emulated, not silicon.
//! What cannot be fetched or built is a skip by name, never a pass.

mod exceptions;
mod initramfs;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::tally::Tally;
use crate::{Outcome, arm64, packages};
use initramfs::Initramfs;

/// Crates whose tests run there.
const CRATES: &[&str] = &["trapline-runtime", "trapline-plan", "trapline-target", "trapline"];
/// Their test programs that do.
const TARGETS: &[&str] = &[
    "--lib",
    "--test=trap_aarch64",
    "--test=hits",
    "--test=lookup",
    "--test=pool",
    "--test=stub_native_aarch64",
    "--test=outside_aarch64",
];
/// Of tests inside crates, those that run there: others look at files and programs which are not there.
const LIBRARY: &str = "trapline_runtime-";
/// What only the boot for figures runs.
const FIGURES: &str = "figures::";
/// What does not come to an end in reasonable time where every instruction is emulated, while four threads trap as fast as they can: run under
/// user-mode emulation alone.
const TOO_SLOW: &str = "storm::traps_that_come_and_go";
const SECONDS: &str = "900";

/// Runs the step. The console's lines are kept in the target folder.
pub(crate) fn run() -> Result<Outcome> {
    let skip = |why: String| {
        println!("LOUD SKIP: arm64-system: {why}");
        Ok(Outcome { skipped: vec![format!("arm64-system: {why}")], ..Outcome::default() })
    };
    let missing = packages::ensure_arm64_system();
    if !missing.is_empty() {
        return skip(format!("packages {} are missing", missing.join(" ")));
    }
    let folder = arm64::folder() + "-system";
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    let (kernel, shell) = match (fetch(folder, &kernel_package()?), fetch(folder, "busybox-static")) {
        (Ok(kernel), Ok(shell)) => (first_in(&kernel.join("boot"), "vmlinuz-")?, shell.join("bin/busybox")),
        (Err(why), _) | (_, Err(why)) => return skip(format!("{why:#}")),
    };
    let (tests, command) = (build()?, build_command()?);
    let mut total = boot_tests(folder, &kernel, &shell, &tests, &command)?;
    total.add(boot_figures(folder, &kernel, &shell, &tests)?);
    Ok(total)
}

/// The package that the distribution's name for "the kernel" stands for now.
fn kernel_package() -> Result<String> {
    let output = Command::new("apt-cache").args(["depends", "linux-image-arm64:arm64"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let name = name.context("no linux-image-arm64 is known: apt-get update")?;
    Ok(format!("linux-image-{}", name.trim_end_matches(":arm64")))
}

/// A package for arm64, unpacked under `folder`, not installed.
fn fetch(folder: &Path, package: &str) -> Result<PathBuf> {
    let into = folder.join(package);
    if into.is_dir() {
        return Ok(into);
    }
    let debs = folder.join("debs");
    fs::create_dir_all(&debs)?;
    let status = Command::new("apt-get")
        .args(["-qq", "download", &format!("{package}:arm64")])
        .current_dir(&debs)
        .status()?;
    if !status.success() {
        bail!("{package}:arm64 cannot be downloaded");
    }
    let deb = first_in(&debs, &format!("{package}_"))?;
    let unpacked = folder.join(format!("{package}.part"));
    // What is needed of a kernel is a few of thousands of files.
    let wanted = if package.starts_with("linux-image") { "./boot" } else { "./bin" };
    let mut unpack =
        Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&deb).stdout(Stdio::piped()).spawn()?;
    fs::create_dir_all(&unpacked)?;
    let tar = unpack.stdout.take().context("a pipe")?;
    let status = Command::new("tar").args(["-x", "-C"]).arg(&unpacked).arg(wanted).stdin(tar).status()?;
    if !unpack.wait()?.success() || !status.success() {
        bail!("{} cannot be unpacked", deb.display());
    }
    fs::rename(&unpacked, &into)?;
    fs::remove_file(deb)?;
    Ok(into)
}

fn first_in(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .collect();
    names.sort();
    names.pop().with_context(|| format!("{}: no {prefix}…", folder.display()))
}

/// The test programs, built.
fn build() -> Result<Vec<PathBuf>> {
    let mut command = arm64::tests(CRATES, TARGETS, 0, &["--no-run", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo test")?;
    if !output.status.success() {
        bail!("the tests do not build for arm64");
    }
    let runs_there = |message: &serde_json::Value| {
        message["target"]["kind"][0] != "lib" || message["executable"].to_string().contains(LIBRARY)
    };
    Ok(executables(&output.stdout, runs_there))
}

/// The command itself, for tests that run it.
fn build_command() -> Result<PathBuf> {
    let mut command = arm64::cargo("build");
    command.args(["-p", "trapline-cli", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo build")?;
    executables(&output.stdout, |_| true).pop().context("the command does not build for arm64")
}

/// The programs that cargo's messages name.
fn executables(messages: &[u8], wanted: impl Fn(&serde_json::Value) -> bool) -> Vec<PathBuf> {
    let lines = messages.split(|byte| *byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    messages.filter(wanted).filter_map(|one| one["executable"].as_str().map(PathBuf::from)).collect()
}

/// Everything but the figures, on two processors.
fn boot_tests(
    folder: &Path,
    kernel: &Path,
    shell: &Path,
    tests: &[PathBuf],
    command: &Path,
) -> Result<Outcome> {
    let mut image = Initramfs::new(shell)?;
    image.file("bin/trapline", 0o755, &fs::read(command)?);
    let mut script = String::from("export TRAPLINE_COMMAND=/bin/trapline\n");
    for (number, test) in tests.iter().enumerate() {
        let name = format!("tests/{number}");
        image.file(&name, 0o755, &fs::read(test)?);
        let shown = test.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        script += &format!(
            "echo Running {shown}; /{name} --show-output --test-threads=2 --skip {FIGURES} --skip {TOO_SLOW}\n"
        );
    }
    let initrd = folder.join("tests.cpio");
    fs::write(&initrd, image.finish(&script))?;
    println!("{} programs on {}, emulated", tests.len(), kernel.display());
    let mut emulator = emulator(kernel, &initrd);
    emulator.args(["-smp", "2"]);
    let mut tally = Tally::default();
    let programs = watch(emulator, &folder.join("tests.log"), |line| _ = tally.line(line))?;
    let binaries = tally.binaries();
    let mut outcome = tally.outcome();
    if programs != tests.len() || binaries != tests.len() as u64 {
        println!("{programs} of {} programs ended", tests.len());
        outcome.failed += 1;
    }
    Ok(outcome)
}

/// The figures, on one processor that counts.
fn boot_figures(folder: &Path, kernel: &Path, shell: &Path, tests: &[PathBuf]) -> Result<Outcome> {
    let mut image = Initramfs::new(shell)?;
    let program = tests.iter().find(|test| test.to_string_lossy().contains("trap_aarch64-"));
    image.file("tests/figures", 0o755, &fs::read(program.context("no trap_aarch64")?)?);
    let script = format!("/tests/figures --nocapture --test-threads=1 {FIGURES}\n");
    let initrd = folder.join("figures.cpio");
    fs::write(&initrd, image.finish(&script))?;
    let trace = folder.join("exceptions.log");
    let mut emulator = emulator(kernel, &initrd);
    // One nanosecond for each instruction, and a line for each exception.
    emulator.args(["-icount", "shift=0", "-d", "int", "-D"]).arg(&trace);
    let (mut tally, mut rows) = (Tally::default(), Vec::new());
    watch(emulator, &folder.join("figures.log"), |line| {
        tally.line(line);
        // The first of a test's lines stands behind the test's name.
        let row = line.find('{').and_then(|at| serde_json::from_str::<serde_json::Value>(&line[at..]).ok());
        rows.extend(row.filter(|row| row["type"] == "bench"));
    })?;
    let binaries = tally.binaries();
    let mut outcome = tally.outcome();
    let counted = exceptions::of_rows(BufReader::new(fs::File::open(&trace)?))?;
    fs::remove_file(&trace)?;
    let (lines, faults) = exceptions::judge(&rows, &counted);
    let saved: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(folder.join("figures.jsonl"), saved)?;
    lines.iter().for_each(|line| println!("{line}"));
    faults.iter().for_each(|fault| println!("figures: {fault}"));
    outcome.failed += faults.len() as u64 + u64::from(binaries != 1);
    Ok(outcome)
}

/// An emulated machine with this kernel and these files; the same for both boots. Pointers are signed by a quick function of the emulator's own: the
/// architected one takes it longer than all the rest.
fn emulator(kernel: &Path, initrd: &Path) -> Command {
    let mut command = Command::new("timeout");
    let machine = ["-M", "virt", "-cpu", "max,pauth-impdef=on", "-m", "1G", "-nographic", "-no-reboot"];
    command.args([SECONDS, "qemu-system-aarch64"]).args(machine);
    command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
    command.args(["-append", "console=ttyAMA0 rdinit=/init panic=-1 quiet"]).stdin(Stdio::null());
    command
}

/// Runs it; its console is shown, kept in `log` and handed on. The number of programs that the guest said have ended.
fn watch(mut emulator: Command, log: &Path, mut each: impl FnMut(&str)) -> Result<usize> {
    let mut child = emulator.stdout(Stdio::piped()).spawn().context("the emulator")?;
    let (mut kept, mut ended) = (String::new(), 0);
    let console = BufReader::new(child.stdout.take().context("a pipe")?);
    for line in console.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        println!("{line}");
        ended += usize::from(line.starts_with("test result: "));
        each(&line);
        kept += &line;
        kept.push('\n');
    }
    child.wait()?;
    fs::write(log, kept)?;
    Ok(ended)
}
