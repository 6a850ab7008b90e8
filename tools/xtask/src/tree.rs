//! The repository's sources and documents.
//!
//! In: the repository's root. Out: the paths of all files, and the texts of those that a person writes. Does not:
//! read committed runs, which stay as they were, or our own tests of documents, which are full of made-up names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Folders of sources and documents.
const FOLDERS: &[&str] = &["crates", "docs", "fuzz", "python", "scripts", "tests", "tools"];
/// What is not read.
const UNREAD: &[&str] = &["tools/bench/runs/", "tools/xtask/src/book/", "tools/xtask/src/ids/"];
/// How the names of files end that are read.
const READ: &[&str] = &["rs", "md", "toml", "c", "h", "js", "py", "sh", "bt"];

/// The repository: paths from its root on, with `/`.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) paths: BTreeSet<String>,
    /// Of the files that are read.
    pub(crate) texts: BTreeMap<String, String>,
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}

/// The folder of build output.
pub(crate) fn target() -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    std::path::absolute(target).context("no target folder")
}

/// All files below the folders, and the documents beside them.
pub(crate) fn read(root: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    let mut folders: Vec<String> = FOLDERS.iter().map(ToString::to_string).collect();
    for entry in fs::read_dir(root).context("the repository's root")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        tree.paths.extend((root.join(&name).is_file()).then_some(name));
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder)).with_context(|| folder.clone())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}/{name}");
            match entry.file_type()? {
                _ if name.starts_with('.') || root.join(&path).join("CACHEDIR.TAG").exists() => {}
                kind if kind.is_dir() => folders.push(path),
                _ => drop(tree.paths.insert(path)),
            }
        }
    }
    for path in &tree.paths {
        let ends = path.rsplit_once('.').is_some_and(|(_, end)| READ.contains(&end));
        if ends && !UNREAD.iter().any(|unread| path.starts_with(unread)) {
            let text = fs::read_to_string(root.join(path)).with_context(|| path.clone())?;
            tree.texts.insert(path.clone(), text);
        }
    }
    Ok(tree)
}
