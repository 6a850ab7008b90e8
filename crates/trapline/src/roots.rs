//! Where files of a name may lie: here, and in the roots of containers.
//!
//! In: which processes are meant; a name as it was typed. Out: their roots, and files below a root, as paths that we can
//! open. Does not: follow a symbolic link as the container would; one that begins with a slash leads to our own files.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use trapline_tracee::Among;

use crate::modules::is_short_name;
use crate::target::all_pids;

/// Folders in which the dynamic loader looks, on Debian and elsewhere.
pub(crate) const LIBRARIES: [&str; 9] = [
    "/lib",
    "/usr/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Roots of the processes that are meant, each once, except for our own.
pub(crate) fn other_roots(among: &Among) -> Vec<PathBuf> {
    let identity = |root: &Path| std::fs::metadata(root).ok().map(|meta| (meta.dev(), meta.ino()));
    let mut seen: HashSet<_> = identity(Path::new("/")).into_iter().collect();
    let roots =
        all_pids().filter(|&pid| among.has(pid)).map(|pid| PathBuf::from(format!("/proc/{pid}/root")));
    roots.filter(|root| identity(root).is_some_and(|one| seen.insert(one))).collect()
}

/// A path inside a root.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Whether a file is a library, by its name.
pub(crate) fn is_library(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(".so"))
}

/// Files below a root that a name may mean: itself if it is a path, otherwise those of the usual folders.
pub(crate) fn usual(root: &Path, name: &str) -> Vec<PathBuf> {
    let inside = |path: &Path| below(root, path);
    if name.contains('/') {
        let path = Path::new(name);
        return vec![if path.is_absolute() { inside(path) } else { path.to_owned() }];
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = std::env::split_paths(&path).map(|folder| inside(&folder.join(name)));
    let programs = programs.filter(|path| path.is_file());
    let folders = LIBRARIES.iter().filter_map(|folder| std::fs::read_dir(inside(Path::new(folder))).ok());
    let libraries = folders.flatten().flatten();
    let libraries = libraries.map(|entry| entry.path()).filter(|path| {
        is_library(path) && path.to_str().is_some_and(|text| is_short_name(text, name)) && path.is_file()
    });
    programs.chain(libraries).collect()
}
