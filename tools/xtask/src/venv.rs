//! Interpreters of Python with packages of their own, for tests.
//!
//! In: a folder's name, packages with their versions. Out: an interpreter that has them, made once under the target
//! folder. Does not: change the machine's own Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::tree;

/// The interpreter in `target/NAME`.
pub(crate) fn make(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let dir = tree::target()?.join(name);
    let (python, done) = (dir.join("bin/python"), dir.join("done"));
    let listed = packages.join(" ");
    if fs::read_to_string(&done).is_ok_and(|there| there == listed) {
        return Ok(python);
    }
    // What an interrupted run left, or one with other packages.
    fs::remove_dir_all(&dir).ok();
    let run = |program: &Path, words: &[&str]| -> Result<()> {
        let status =
            Command::new(program).args(words).status().with_context(|| program.display().to_string())?;
        ensure!(status.success(), "{} {}: {status}", program.display(), words.join(" "));
        Ok(())
    };
    run(Path::new("python3"), &["-m", "venv", &dir.display().to_string()])?;
    let install = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
    run(&python, &[&install, packages].concat())?;
    fs::write(&done, listed)?;
    Ok(python)
}
