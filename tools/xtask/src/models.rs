//! The protocols between threads in every interleaving: the tests of `record` that exist under `cfg(loom)` only.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{Outcome, cargo_path, test};

/// Runs the models. They are built in a folder of their own: other flags there would rebuild everything here.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let mut command = Command::new(cargo_path());
    command.args(["test", "--release", "--package", "trapline-record", "--test", "interleavings"]);
    command.env("RUSTFLAGS", format!("{flags} --cfg loom")).env("CARGO_TARGET_DIR", target.join("loom"));
    command.args(args);
    test::run_and_count(command)
}
