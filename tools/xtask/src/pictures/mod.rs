//! The pictures of the documents: real runs on this machine, drawn.
//!
//! In: names of pictures, or none for all. Out: files in docs/pictures. Terminals and flame graphs are SVG, pages of the
//! command are PNG, as a browser draws them.
//! Invariant: no picture is written that is too large, or that says which machine it was made on.
//! Does not: compare with earlier pictures: figures differ from run to run. A picture whose program is missing is skipped
//! and named.

mod colours;
mod draw;
mod private;
mod programs;
mod scenes;
mod terminal;

use std::ffi::OsString;
use std::fs;

use anyhow::{Context as _, Result, ensure};

use crate::cargo::cargo;
use crate::outcome::Outcome;
use crate::{packages, tree};

use scenes::{SCENES, Scene, Stage};

/// Where pictures lie, from the repository's root on.
const FOLDER: &str = "docs/pictures";
/// Bytes that a picture may have.
const LIMIT: usize = 150_000;

/// Makes these pictures again, or all.
pub(crate) fn run(args: &[String]) -> Result<Outcome> {
    let known = SCENES.iter().map(|scene| scene.file).collect::<Vec<_>>();
    for name in args {
        ensure!(known.contains(&name.as_str()), "there is no picture {name}; there are {}", known.join(", "));
    }
    let mut outcome = cargo(&["build", "--release", "-p", "trapline-cli"], &[])?;
    if outcome.failed > 0 {
        return Ok(outcome);
    }
    let missing = packages::ensure_pictures();
    for scene in SCENES.iter().filter(|scene| args.is_empty() || args.iter().any(|name| name == scene.file)) {
        if let Some(package) = scene.needs.iter().find(|package| missing.contains(package)) {
            println!("LOUD SKIP: {}: package {package} is missing", scene.file);
            outcome.skipped.push(format!("pictures: {}: package {package} is missing", scene.file));
            continue;
        }
        let made = make(scene).with_context(|| scene.file);
        println!("pictures: {}", made.as_ref().map_or_else(|error| format!("{error:#}"), Clone::clone));
        outcome.add(Outcome::single(made.is_ok()));
    }
    Ok(outcome)
}

/// Makes one picture. What is to be said of it.
fn make(scene: &Scene) -> Result<String> {
    let mut path = OsString::from(tree::target()?.join("release"));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let stage = Stage { folder: programs::Folder::new()?, path };
    let picture = (scene.make)(&stage)?;
    check(&picture)?;
    let folder = tree::root().join(FOLDER);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(scene.file), &picture)?;
    Ok(format!("{FOLDER}/{}, {} KB", scene.file, picture.len().div_ceil(1000)))
}

/// Whether this may be a picture of the documents.
fn check(picture: &[u8]) -> Result<()> {
    ensure!(picture.len() <= LIMIT, "{} bytes, at most {LIMIT}", picture.len());
    if let Ok(text) = std::str::from_utf8(picture) {
        let faults = private::faults(text, &private::names());
        ensure!(faults.is_empty(), "it shows {}", faults.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{LIMIT, check};

    #[test]
    fn what_is_too_large_or_names_a_machine_is_no_picture() {
        assert!(check(b"<svg><text>main at shop.c:27</text></svg>").is_ok());
        assert!(check(b"<svg><text>main at /home/ann/shop.c:27</text></svg>").is_err());
        assert!(check(&vec![0xff; LIMIT + 1]).is_err());
        assert!(check(&[0x89, b'P', b'N', b'G', 0xff]).is_ok());
    }
}
