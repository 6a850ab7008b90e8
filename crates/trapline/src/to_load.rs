//! Files that a program will load which is yet to be started, by their names.
//!
//! In: a program, a name as it was typed. Out: the path that the name means: the program, a library that its loader finds
//! for it, else what [`find_file`] finds. The loader itself is asked (`LOADER --list PROGRAM`), since the path of a library
//! depends on the program, the environment and the loader's cache. Does not: know what the program loads later by
//! itself.

use std::cell::OnceCell;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::files::Files;
use crate::listing::find_file;
use crate::modules::is_short_name;

/// A program, and what its loader says.
pub(crate) struct ToLoad {
    pub(crate) program: PathBuf,
    libraries: OnceCell<Vec<PathBuf>>,
}

impl ToLoad {
    pub(crate) const fn new(program: PathBuf) -> Self {
        Self { program, libraries: OnceCell::new() }
    }
    /// The file that a name means.
    pub(crate) fn named(&self, wanted: &str, files: &mut Files) -> Option<PathBuf> {
        let is = |path: &Path| is_short_name(&path.to_string_lossy(), wanted);
        if wanted.contains('/') {
            return find_file(wanted);
        }
        if is(&self.program) || std::fs::canonicalize(&self.program).is_ok_and(|path| is(&path)) {
            return Some(self.program.clone());
        }
        let libraries = self.libraries.get_or_init(|| listed(&self.program, files).unwrap_or_default());
        libraries.iter().find(|path| is(path)).cloned().or_else(|| find_file(wanted))
    }
}

/// The libraries that a program's loader lists; `None` if it has none, or that cannot be asked.
fn listed(program: &Path, files: &mut Files) -> Option<Vec<PathBuf>> {
    let file = files.of_path(program).ok()?;
    let program = std::fs::canonicalize(program).ok()?;
    // A file may name any program as its loader, and a plan shall run none but the system's.
    let loader = file.image.interp()?;
    std::fs::metadata(loader).ok().filter(|meta| meta.is_file() && meta.uid() == 0)?;
    let mut command = Command::new(loader);
    command.arg("--list").arg(program).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    let path = |line: &str| {
        let found = line.split_once(" => ").map_or(line, |(_, found)| found);
        let (path, _) = found.rsplit_once(" (0x")?;
        let path = path.trim();
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    Some(String::from_utf8_lossy(&output.stdout).lines().filter_map(path).collect())
}
