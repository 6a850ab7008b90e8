//! The Python wheel of one processor: the module, and the static binary in it.
//!
//! In: the binary. Out: a file that `pip` installs, made by `python/wheel.py`. Where no Python is, it says so and is
//! skipped. Does not: test the module; `cargo xtask python` does.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::binary::Machine;
use super::{epoch, printed};
use crate::outcome::Outcome;
use crate::tree;

/// Makes it.
pub(super) fn make(machine: Machine, binary: &Path, folder: &Path) -> Outcome {
    if Command::new("python3").arg("--version").output().is_err() {
        let why = format!("dist: the wheel for {}: no python3", machine.name());
        println!("LOUD SKIP: {why}");
        return Outcome { skipped: vec![why], ..Outcome::default() };
    }
    let script = tree::root().join("python/wheel.py");
    let made = epoch().and_then(|epoch| {
        let mut python = Command::new("python3");
        python.env("SOURCE_DATE_EPOCH", epoch.to_string()).arg(script);
        printed(python.arg(binary).arg(machine.name()).arg(folder))
    });
    match &made {
        Ok(path) => println!("{}", path.trim()),
        Err(error) => println!("the wheel for {}: {error:#}", machine.name()),
    }
    Outcome::single(made.is_ok())
}

/// The wheels of this machine's processor in a folder.
pub(super) fn of_host(folder: &Path) -> Vec<PathBuf> {
    let end = format!("_{}.whl", Machine::HOST.name());
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(&end)).collect()
}
