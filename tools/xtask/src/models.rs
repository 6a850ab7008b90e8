//! The protocols between threads in every interleaving: tests that exist in a build for it only.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::{Outcome, cargo_path, test};

/// Packages, where their models are (`--lib` if they look at what is private), and what makes them use loom's words: crates that live
/// on real shared memory would not build with those of `record`.
const MODELS: [(&str, &[&str], &str); 3] = [
    ("trapline-record", &["--test", "interleavings"], "loom_words"),
    ("trapline-watch", &["--test", "constraints_loom"], "loom"),
    ("trapline-runtime", &["--lib"], "loom"),
];

/// Runs the models. They are built in a folder of their own: other flags there would rebuild everything here.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let mut outcome = Outcome::default();
    for (package, models, cfg) in MODELS {
        let mut command = Command::new(cargo_path());
        command.args(["test", "--release", "--package", package]).args(models);
        command.env("RUSTFLAGS", format!("{flags} --cfg {cfg}")).env("CARGO_TARGET_DIR", target.join("loom"));
        command.args(args);
        outcome.add(test::run_and_count(command)?);
    }
    Ok(outcome)
}
