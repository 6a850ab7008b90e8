//! arm64 under a whole system: the distribution's own kernel, booted in an emulator, with our tests as its only
//! programs.
//!
//! In: the distribution's kernel and shell for arm64, which are fetched and not installed; names of parts, or none for
//! all. Out: the tests' lines, counted like any others; for each way to do a hit, instructions and exceptions. Each
//! part is a boot of its own with a log of its own, so one that failed can be repeated alone. One is every test
//! program, all at once, on two processors. The other is `figures`, which is `trapline-bench uprobe` and `uretprobe`,
//! on one that counts instructions exactly. Emulated, not silicon. What cannot be fetched or built is a skip by name,
//! never a pass.

mod boot;
mod exceptions;
mod fetch;
mod initramfs;

use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::outcome::Outcome;
use crate::tally::Tally;
use crate::{arm64, packages};
use boot::System;
use fetch::{fetch, first_in, kernel_package};
use initramfs::Initramfs;

/// Crates with tests that run there.
const CRATES: &[&str] =
    &["trapline-runtime", "trapline-plan", "trapline-tracee", "trapline-watch", "trapline"];
/// Their test programs that do.
const TARGETS: &[&str] = &[
    "--lib",
    "--test=trap_aarch64",
    "--test=hits",
    "--test=lookup",
    "--test=pool",
    "--test=stub_native_aarch64",
    "--test=inside_aarch64",
    "--test=live",
    "--test=outside_aarch64",
];
/// Of tests inside crates, those that run there: others look at files and programs which are not there.
const LIBRARIES: [&str; 2] = ["trapline_runtime-", "trapline_watch-"];
/// The part that `trapline-bench` is: the only one that is no test program.
const FIGURES: &str = "figures";
/// What does not come to an end in reasonable time where every instruction is emulated, while four threads trap as fast
/// as they can: run under user-mode emulation alone.
const TOO_SLOW: &str = "storm::traps_that_come_and_go";

/// What is run.
struct Programs {
    tests: Vec<PathBuf>,
    /// `trapline` itself.
    command: PathBuf,
    /// `trapline-bench`.
    bench: PathBuf,
    /// What `inside_aarch64` probes.
    library: PathBuf,
    /// Programs that `outside_aarch64` probes, by name: in C, and in Go if there is one to build them.
    victims: Vec<(&'static str, PathBuf)>,
}

/// Runs the step. The console's lines are kept in the target folder, part by part.
pub(crate) fn run(parts: &[String]) -> Result<Outcome> {
    let skip = |why: String| {
        println!("LOUD SKIP: arm64-system: {why}");
        Ok(Outcome { skipped: vec![format!("arm64-system: {why}")], ..Outcome::default() })
    };
    let missing = packages::ensure_arm64_system();
    if !missing.is_empty() {
        return skip(format!("packages {} are missing", missing.join(" ")));
    }
    let folder = PathBuf::from(arm64::folder() + "-system");
    fs::create_dir_all(&folder)?;
    let (kernel, shell) = match (fetch(&folder, &kernel_package()?), fetch(&folder, "busybox-static")) {
        (Ok(kernel), Ok(shell)) => (first_in(&kernel.join("boot"), "vmlinuz-")?, shell.join("bin/busybox")),
        (Err(why), _) | (_, Err(why)) => return skip(format!("{why:#}")),
    };
    let [command, bench] = build_commands()?;
    // The figures alone need no test program.
    let tests = if parts == [FIGURES] { Vec::new() } else { build()? };
    let library = build_library(&folder)?;
    let victims = [build_c(&folder)?, build_go(&folder)?].concat();
    let programs = Programs { tests, command, bench, library, victims };
    run_parts(&System { folder, kernel, shell }, &programs, parts)
}

/// Each part in a boot of its own; a table of them at the end.
fn run_parts(system: &System, programs: &Programs, parts: &[String]) -> Result<Outcome> {
    let tests = &programs.tests;
    let names: Vec<String> = tests.iter().map(|test| part_of(test)).chain([FIGURES.to_owned()]).collect();
    if let Some(unknown) = parts.iter().find(|part| !names.contains(part)) {
        bail!("no part {unknown}; there are {}", names.join(" "));
    }
    println!("{}, emulated", system.kernel.display());
    let (mut total, mut table) = (Outcome::default(), Vec::new());
    for (index, name) in names.iter().enumerate() {
        if !(parts.is_empty() || parts.contains(name)) {
            continue;
        }
        println!("\n=== {name}");
        let begun = Instant::now();
        let outcome = match tests.get(index) {
            Some(test) => boot_test(system, name, test, programs)?,
            None => boot_figures(system, &programs.bench)?,
        };
        table.push(format!("{name:24} {:>5} s  {}", begun.elapsed().as_secs(), outcome.closing_line()));
        total.add(outcome);
    }
    println!("\n{}", table.join("\n"));
    Ok(total)
}

/// A test program's name, without what cargo puts behind it.
fn part_of(test: &Path) -> String {
    let name = test.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.rsplit_once('-').map_or(name.clone(), |(part, _)| part.to_owned())
}

/// The test programs, built.
fn build() -> Result<Vec<PathBuf>> {
    let mut command = arm64::tests(CRATES, TARGETS, 0, &["--no-run", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo test")?;
    if !output.status.success() {
        bail!("the tests do not build for arm64");
    }
    let runs_there = |message: &serde_json::Value| {
        let program = message["executable"].to_string();
        message["target"]["kind"][0] != "lib" || LIBRARIES.iter().any(|name| program.contains(name))
    };
    Ok(executables(&output.stdout, runs_there))
}

/// The command itself, for tests that run it, and the bench.
fn build_commands() -> Result<[PathBuf; 2]> {
    let mut command = arm64::cargo("build");
    command.args(["-p", "trapline-cli", "-p", "trapline-bench", "--message-format=json"]);
    let output = command.stderr(Stdio::inherit()).output().context("cargo build")?;
    let all = executables(&output.stdout, |_| true);
    let named = |name: &str| {
        let found = all.iter().find(|path| path.file_name().is_some_and(|file| file == name));
        found.cloned().with_context(|| format!("{name} does not build for arm64"))
    };
    Ok([named("trapline")?, named("trapline-bench")?])
}

/// The library that a test loads and probes: there is no compiler where it runs.
fn build_library(folder: &Path) -> Result<PathBuf> {
    let library = folder.join("inside.so");
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    compiler.args(["-O1", "-g0", "-shared", "-fPIC", "-fexceptions", "-w", "-Wl,-Bsymbolic"]);
    compiler.args(["crates/trapline/tests/inside_aarch64/victim.c", "-o"]).arg(&library);
    if !compiler.status().context("aarch64-linux-gnu-gcc")?.success() {
        bail!("the library that inside_aarch64 probes does not build");
    }
    Ok(library)
}

/// The C programs that tests probe.
fn build_c(folder: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let build = |name: &'static str| {
        let program = folder.join(name);
        let mut compiler = Command::new("aarch64-linux-gnu-gcc");
        compiler.args(["-O2", "-g", "-D_GNU_SOURCE", "-fPIE", "-pie", "-o"]).arg(&program);
        compiler.arg(format!("tests/victims/{name}.c"));
        if !compiler.status().context("aarch64-linux-gnu-gcc")?.success() {
            bail!("the program {name} that outside_aarch64 probes does not build");
        }
        Ok((name, program))
    };
    ["changes", "own_calls"].into_iter().map(build).collect()
}

/// The Go programs that tests probe.
fn build_go(folder: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let all = ["/usr/local/go/bin/go", "/usr/bin/go"];
    let Some(go) = all.iter().find(|go| Path::new(go).exists()) else {
        println!("LOUD SKIP: arm64-system: there is no Go to build what its tests probe");
        return Ok(Vec::new());
    };
    let build = |name: &'static str| {
        let program = folder.join(name);
        let mut compiler = Command::new(go);
        compiler.env("GOARCH", "arm64").env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod");
        compiler.args(["build", "-o"]).arg(&program).arg(format!("tests/victims/{name}.go"));
        if !compiler.status().context("go")?.success() {
            bail!("the Go program {name} that outside_aarch64 probes does not build");
        }
        Ok((name, program))
    };
    ["grows", "raw_calls"].into_iter().map(build).collect()
}

/// The programs that cargo's messages name.
fn executables(messages: &[u8], wanted: impl Fn(&serde_json::Value) -> bool) -> Vec<PathBuf> {
    let lines = messages.split(|byte| *byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    messages.filter(wanted).filter_map(|one| one["executable"].as_str().map(PathBuf::from)).collect()
}

/// Everything but the figures, on two processors.
fn boot_test(system: &System, name: &str, test: &Path, programs: &Programs) -> Result<Outcome> {
    let mut image = Initramfs::new(&system.shell)?;
    image.file("bin/trapline", 0o755, &fs::read(&programs.command)?);
    image.file("tmp/inside.so", 0o755, &fs::read(&programs.library)?);
    for (name, program) in &programs.victims {
        image.file(&format!("tmp/{name}"), 0o755, &fs::read(program)?);
    }
    image.file("tests/it", 0o755, &fs::read(test)?);
    let script = format!(
        "export TRAPLINE_COMMAND=/bin/trapline TRAPLINE_INSIDE_VICTIM=/tmp/inside.so TRAPLINE_GO_VICTIM=/tmp/grows TRAPLINE_CHANGES_VICTIMS=/tmp\necho Running {name}; \
         /tests/it --show-output --test-threads=2 --skip {TOO_SLOW}\n"
    );
    let initrd = system.folder.join(format!("{name}.cpio"));
    fs::write(&initrd, image.finish(&script))?;
    let mut emulator = system.emulator(&initrd);
    emulator.args(["-smp", "2"]);
    let mut tally = Tally::default();
    let ended = system.boot(emulator, name, |line| _ = tally.line(line))?;
    fs::remove_file(&initrd)?;
    let closed = tally.binaries() == 1;
    let mut outcome = tally.outcome();
    if outcome.failed == 0 && !(ended && closed) {
        outcome.failed += 1;
        outcome.failures.push(format!("{name}: did not come to its end"));
    }
    Ok(outcome)
}

/// The figures, on one processor that counts; then with what is simulated stepped instead, and again with it out of
/// line instead, where the judge must object.
fn boot_figures(system: &System, bench: &Path) -> Result<Outcome> {
    /// The first rows of each bench; the rows of one are fewer than a bench may have.
    const ROWS: u64 = 40;
    const CONTROLS: [&str; 2] = ["stepped", "out-of-line"];
    let folder = &system.folder;
    let mut image = Initramfs::new(&system.shell)?;
    image.file("tests/trapline-bench", 0o755, &fs::read(bench)?);
    let bench = |name: &str, more: &str| format!("/tests/trapline-bench {name} --json {more}\n");
    let mut script = vec![];
    for (nth, instead) in (0..).zip([None].into_iter().chain(CONTROLS.map(Some))) {
        let more = instead.map_or_else(String::new, |way| format!("--no-simulation {way} "));
        let first = |bench: u64| 1 + ROWS * (2 * nth + bench);
        script.push(bench("uprobe", &format!("{more}--first-row {}", first(0))));
        script.push(bench("uretprobe", &format!("{more}--first-row {}", first(1))));
    }
    let initrd = folder.join("figures.cpio");
    fs::write(&initrd, image.finish(&script.concat()))?;
    let trace = folder.join("exceptions.log");
    let mut emulator = system.emulator(&initrd);
    // One nanosecond for each instruction, and a line for each exception.
    emulator.args(["-icount", "shift=0", "-d", "int", "-D"]).arg(&trace);
    let mut rows: Vec<serde_json::Value> = Vec::new();
    let ended = system.boot(emulator, FIGURES, |line| {
        let row = serde_json::from_str::<serde_json::Value>(line).ok();
        rows.extend(row.filter(|row| row["type"] == "bench"));
    })?;
    let counted = exceptions::of_rows(BufReader::new(fs::File::open(&trace)?))?;
    fs::remove_file(&trace)?;
    let of = |nth: u64| {
        let range = 1 + 2 * ROWS * nth..=2 * ROWS * (nth + 1);
        let is_here = |row: &&serde_json::Value| row["row"].as_u64().is_some_and(|row| range.contains(&row));
        exceptions::with_exceptions(rows.iter().filter(is_here).cloned().collect(), &counted)
    };
    let controls = (1..).zip(CONTROLS).map(|(nth, way)| (way, of(nth)));
    let mut faults: Vec<String> = controls
        .flat_map(|(way, rows)| {
            let objections = exceptions::judge(&rows);
            objections.iter().for_each(|one| println!("figures, {way} in place of simulated: {one}"));
            exceptions::unnoticed(&rows, way)
        })
        .collect();
    let rows = of(0);
    faults.extend(exceptions::judge(&rows));
    if !ended {
        faults.push("did not come to its end".to_owned());
    }
    let saved: String = rows.iter().map(|row| format!("{row}\n")).collect();
    fs::write(folder.join("figures.jsonl"), saved)?;
    println!("{}", exceptions::table(&rows));
    faults.iter().for_each(|fault| println!("figures: {fault}"));
    let (passed, failed) = (u64::from(faults.is_empty()), faults.len() as u64);
    Ok(Outcome { passed, failed, failures: faults, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::part_of;
    use std::path::Path;

    #[test]
    fn parts_are_named_as_their_programs() {
        assert_eq!(part_of(Path::new("target/deps/trap_aarch64-93b1a506eb1128f9")), "trap_aarch64");
    }
}
