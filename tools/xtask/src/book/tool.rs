//! mdBook, in the one version that the book is checked with.
//!
//! In: the target folder. Out: the program, found or built; what it warns of. It is built without its server
//! and without optimization, which takes about a minute of one processor, once. As a dependency it would be built
//! before each first `cargo xtask`, and stand in everyone's Cargo.lock.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use anyhow::{Context as _, Result, ensure};

use crate::cargo::cargo_path;

/// Another version may warn of other things.
const VERSION: &str = "0.5.4";

/// The program: the one that is installed, or one of our own.
pub(super) fn ensure(target: &Path) -> Result<PathBuf> {
    // Not `tools` itself: an earlier one there has no search, and does not say so.
    let folder = target.join("tools/book");
    let ours = folder.join("bin/mdbook");
    if let Some(found) = [Path::new("mdbook"), &ours].into_iter().find(|program| is_right(program)) {
        return Ok(found.to_owned());
    }
    println!("book: building mdbook {VERSION}, once, into {}", folder.display());
    let build = folder.join("build");
    let status = Command::new(cargo_path())
        .args(["install", "mdbook", "--version", VERSION, "--locked", "--quiet"])
        .args(["--no-default-features", "--features", "search", "--debug", "--root"])
        .arg(&folder)
        .envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_INCREMENTAL", "0")])
        .env("CARGO_TARGET_DIR", &build)
        .status()
        .context("cargo install")?;
    fs::remove_dir_all(&build).ok();
    ensure!(status.success() && is_right(&ours), "mdbook {VERSION} cannot be installed here");
    Ok(ours)
}

/// Whether this program exists and is of our version.
fn is_right(program: &Path) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == format!("mdbook v{VERSION}").as_bytes())
}

/// Builds the book; what mdBook has to say about it.
pub(super) fn build(program: &Path, sources: &Path, book: &Path) -> Result<Vec<String>> {
    match fs::remove_dir_all(book) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context("an earlier book")?,
        _ => {}
    }
    let mut command = Command::new(program);
    command.arg("build").arg(sources).arg("--dest-dir").arg(book).env("MDBOOK_LOG", "warn");
    let output = command.output().context("mdbook")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let mut faults: Vec<String> =
        text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    if !output.status.success() {
        faults.push(format!("mdbook: {}", output.status));
    }
    Ok(faults)
}
