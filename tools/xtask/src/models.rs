//! The protocols between threads in every interleaving: tests that exist in a build for it only.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cargo::cargo_path;
use crate::outcome::Outcome;
use crate::test;

/// Packages, and where their models are (`--lib` if they look at what is private). Words of `record` become loom's by a
/// feature and not by the flag of the others: crates that live on real shared memory would not build with them.
const MODELS: [(&str, &[&str]); 4] = [
    ("trapline-record", &["--features", "loom_words", "--test", "interleavings"]),
    ("trapline-watch", &["--test", "constraints_loom"]),
    ("trapline-runtime", &["--lib"]),
    ("trapline-runtime", &["--test", "pool_loom"]),
];

/// Runs the models.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for mut command in MODELS.iter().map(modelled) {
        command.args(args);
        outcome.add(test::run_and_count(command)?);
    }
    Ok(outcome)
}

/// Builds what [`run`] runs.
pub(crate) fn builds() -> impl Iterator<Item = Command> {
    MODELS.iter().map(modelled).map(|mut command| {
        command.arg("--no-run");
        command
    })
}

/// `cargo test` of one package's models, in a folder of their own: other flags there would rebuild everything here.
fn modelled((package, models): &(&str, &[&str])) -> Command {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let mut command = Command::new(cargo_path());
    command.args(["test", "--release", "--package", package]).args(*models);
    command.env("RUSTFLAGS", format!("{flags} --cfg loom")).env("CARGO_TARGET_DIR", target.join("loom"));
    command
}
