//! A redis-server with names and debug information, from the distribution's source package.
//!
//! In: where apt finds packages. Out: the program's path, built once under the target folder. What fails on the way is
//! reported, and the tests that need it skip themselves. The system's own list of sources stays as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// Names the program to the tests.
pub(crate) const VARIABLE: &str = "TRAPLINE_REDIS_DEBUG";

/// The program that the variable names, or else one built from source.
pub(crate) fn ensure() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Some(path.into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    match std::path::absolute(target)
        .context("no target folder")
        .and_then(|target| build(&target.join("redis")))
    {
        Ok(program) => Some(program),
        Err(error) => {
            println!("LOUD SKIP: no redis with debug information: {error:#}");
            None
        }
    }
}

fn build(dir: &Path) -> Result<PathBuf> {
    let program = dir.join("source/src/redis-server");
    if program.exists() {
        return Ok(program);
    }
    unpack(dir, "redis")?;
    run(&dir.join("source/src"), "make", &["-s", "-j2", "MALLOC=libc", "DEBUG=-g", "redis-server"])?;
    ensure!(program.exists(), "make left no {}", program.display());
    Ok(program)
}

/// Unpacks a source package.
fn unpack(dir: &Path, package: &str) -> Result<()> {
    // What an interrupted build left.
    fs::remove_dir_all(dir).ok();
    fs::create_dir_all(dir.join("apt/lists/partial"))?;
    fs::write(dir.join("apt/source.sources"), sources()?)?;
    let places = [
        "Dir::Etc::SourceList=/dev/null".to_owned(),
        format!("Dir::Etc::SourceParts={}", dir.join("apt").display()),
        format!("Dir::State::Lists={}", dir.join("apt/lists").display()),
        "APT::Sandbox::User=root".to_owned(),
    ];
    let options: Vec<&str> = places.iter().flat_map(|place| ["-o", place]).collect();
    run(dir, "apt-get", &[&options[..], &["-q", "update"]].concat())?;
    run(dir, "apt-get", &[&options[..], &["-q", "source", "--download-only", package]].concat())?;
    let description = fs::read_dir(dir)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "dsc"))
        .context("apt brought no source package")?;
    run(dir, "dpkg-source", &["-x", &description.to_string_lossy(), "source"])
}

/// A program of this path in a source package, once `make` has built it in the package's folder, below the target folder
/// under this name; as [`ensure()`].
pub(crate) fn built(
    (package, name): (&str, &str),
    program: &Path,
    make: &dyn Fn(&Path) -> Command,
) -> Option<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let made = || -> Result<PathBuf> {
        let dir = std::path::absolute(target)?.join(name);
        let path = dir.join("source").join(program);
        if !path.exists() {
            unpack(&dir, package)?;
            let output = make(&dir.join("source")).output()?;
            ensure!(output.status.success(), "{package}: {}", String::from_utf8_lossy(&output.stderr));
        }
        ensure!(path.exists(), "{} was not made", path.display());
        Ok(path)
    };
    made().inspect_err(|error| println!("LOUD SKIP: no {name} with debug information: {error:#}")).ok()
}

/// The system's sources, asked for source packages.
fn sources() -> Result<String> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").context("the sources of packages")?;
    let mut files: Vec<PathBuf> = parts.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end == "sources")) {
        let text = fs::read_to_string(file)?;
        if text.contains("debian") {
            let ours = |line: &str| {
                if line.starts_with("Types:") { "Types: deb-src".to_owned() } else { line.to_owned() }
            };
            return Ok(text.lines().map(|line| ours(line) + "\n").collect());
        }
    }
    bail!("no sources of packages in /etc/apt/sources.list.d")
}

fn run(dir: &Path, program: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(args)
        .current_dir(dir)
        .output()
        .with_context(|| format!("{program} does not run"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().last().unwrap_or_default().to_owned();
    ensure!(output.status.success(), "{program} failed: {last}");
    Ok(())
}
