//! A browser without a window.
//!
//! In: a page. Out: the page as text once its scripts have run, or a picture of it.
//! Does not: install a browser, or wait for a page that goes on changing: time runs fast in it, and ends after a while.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The package that brings one.
pub(crate) const PACKAGE: &str = "chromium";
/// How long scripts may run, in the page's own time.
const BUDGET: &str = "--virtual-time-budget=10000";

/// The browser of this machine.
pub(crate) fn find() -> Option<&'static str> {
    ["/usr/bin/chromium", "/usr/bin/google-chrome"].into_iter().find(|path| Path::new(path).exists())
}

/// The page at an address, after its scripts ran. The browser keeps its own files in `profile`.
pub(crate) fn dom(address: &str, profile: &Path) -> Result<String> {
    run(&["--dump-dom"], address, profile)
}

/// Draws the upper part of a page, of this width and height, into a PNG.
pub(crate) fn picture(address: &str, profile: &Path, (width, height): (u32, u32), to: &Path) -> Result<()> {
    let (size, to) = (format!("--window-size={width},{height}"), format!("--screenshot={}", to.display()));
    run(&["--hide-scrollbars", &size, &to], address, profile).map(drop)
}

fn run(args: &[&str], address: &str, profile: &Path) -> Result<String> {
    let browser = find().context("there is no browser")?;
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", BUDGET]);
    command.arg(format!("--user-data-dir={}", profile.display())).args(args).arg(address);
    let output = command.output().context(browser)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{browser}: {}: {errors}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
