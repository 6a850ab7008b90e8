//! A Python that knows Perfetto's and OpenTelemetry's own schemas, to judge our timelines and what we send to
//! collectors.
//!
//! In: where Python's packages come from. Out: an interpreter of its own with these packages, made once under the
//! target folder. What fails on the way is reported, and the test that needs it skips itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Names the interpreter to the tests.
pub(crate) const VARIABLE: &str = "TRAPLINE_PERFETTO_PYTHON";
/// The packages, as they were when the tests were written.
const PACKAGES: &[&str] = &["perfetto==0.59.1", "opentelemetry-proto==1.45.2"];

/// The interpreter that the variable names, or else one made for it.
pub(crate) fn ensure() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        return Some(path.into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    match std::path::absolute(target)
        .context("no target folder")
        .and_then(|target| make(&target.join("perfetto")))
    {
        Ok(python) => Some(python),
        Err(error) => {
            println!("LOUD SKIP: no schemas of Perfetto and OpenTelemetry: {error:#}");
            None
        }
    }
}

fn make(dir: &Path) -> Result<PathBuf> {
    let (python, done) = (dir.join("bin/python"), dir.join("done"));
    let packages = PACKAGES.join(" ");
    if fs::read_to_string(&done).is_ok_and(|there| there == packages) {
        return Ok(python);
    }
    // What an interrupted run left, or one with other packages.
    fs::remove_dir_all(dir).ok();
    let run = |program: &Path, words: &[&str]| -> Result<()> {
        let status =
            Command::new(program).args(words).status().with_context(|| program.display().to_string())?;
        ensure!(status.success(), "{} {}: {status}", program.display(), words.join(" "));
        Ok(())
    };
    run(Path::new("python3"), &["-m", "venv", &dir.display().to_string()])?;
    let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
    run(&python, &[&install, PACKAGES].concat())?;
    fs::write(&done, packages)?;
    Ok(python)
}
