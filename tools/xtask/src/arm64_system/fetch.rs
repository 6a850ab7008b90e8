//! The distribution's kernel and shell for arm64: downloaded, unpacked beside our own builds, never installed.
//!
//! In: a package's name. Out: the folder that it is unpacked in. Does not: fetch again what is there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// The package that the distribution's name for "the kernel" stands for now.
pub(super) fn kernel_package() -> Result<String> {
    let output = Command::new("apt-cache").args(["depends", "linux-image-arm64:arm64"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let name = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    let name = name.context("no linux-image-arm64 is known: apt-get update")?;
    Ok(format!("linux-image-{}", name.trim_end_matches(":arm64")))
}

/// A package for arm64, unpacked under `folder`, not installed.
pub(super) fn fetch(folder: &Path, package: &str) -> Result<PathBuf> {
    let into = folder.join(package);
    if into.is_dir() {
        return Ok(into);
    }
    let debs = folder.join("debs");
    fs::create_dir_all(&debs)?;
    let status = Command::new("apt-get")
        .args(["-qq", "download", &format!("{package}:arm64")])
        .current_dir(&debs)
        .status()?;
    if !status.success() {
        bail!("{package}:arm64 cannot be downloaded");
    }
    let deb = first_in(&debs, &format!("{package}_"))?;
    let unpacked = folder.join(format!("{package}.part"));
    // What is needed of a kernel is a few of thousands of files.
    let wanted = if package.starts_with("linux-image") { "./boot" } else { "./bin" };
    let mut unpack =
        Command::new("dpkg-deb").arg("--fsys-tarfile").arg(&deb).stdout(Stdio::piped()).spawn()?;
    fs::create_dir_all(&unpacked)?;
    let tar = unpack.stdout.take().context("a pipe")?;
    let status = Command::new("tar").args(["-x", "-C"]).arg(&unpacked).arg(wanted).stdin(tar).status()?;
    if !unpack.wait()?.success() || !status.success() {
        bail!("{} cannot be unpacked", deb.display());
    }
    fs::rename(&unpacked, &into)?;
    fs::remove_file(deb)?;
    Ok(into)
}

pub(super) fn first_in(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| folder.display().to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)))
        .collect();
    names.sort();
    names.pop().with_context(|| format!("{}: no {prefix}…", folder.display()))
}
