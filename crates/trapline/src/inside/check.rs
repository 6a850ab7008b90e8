//! Checks of a request before anything is planned: of its file, and of the instruction.
//!
//! In: paths and offsets. Out: parsed files, or the error that the kernel's probes have in the same case.
//! Does not: need the file to be mapped. What only the mapped code shows is in the planner's refusals. What
//! the instruction shows depends on the processor (`check` in the twin folders).

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use trapline_record::FileId;

use super::Error;
use super::speculate::SpeculativePlan;
use super::state::State;
use crate::files::ModuleFile;

/// Shows whether a file was written to: length, and time of the last change of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    len: u64,
    written: (i64, i64),
}

/// Stamp of each file at its first registration.
pub(super) type Stamps = HashMap<FileId, Stamp>;

/// Opens a regular file; returns its identity and its stamp.
pub(super) fn opened(path: &Path) -> Result<(File, FileId, Stamp), Error> {
    let fail = |source| Error::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return Err(Error::File { path: path.to_owned(), why: "it is no regular file".into() });
    }
    let id = FileId { dev: meta.dev(), inode: meta.ino() };
    let stamp = Stamp { len: meta.len(), written: (meta.mtime(), meta.mtime_nsec()) };
    Ok((file, id, stamp))
}

impl State {
    /// Parses a file, if it is still the one that was registered first.
    pub(super) fn file(&mut self, path: &Path) -> Result<Arc<ModuleFile>, Error> {
        let (_, id, stamp) = opened(path)?;
        if self.stamps.get(&id).is_some_and(|known| *known != stamp) {
            return Err(Error::Changed { path: path.to_owned() });
        }
        let early = self.early.take_if(|early| early.is_of(path)).and_then(SpeculativePlan::wait);
        let early = early.filter(|early| early.file.id == id && early.stamp == stamp);
        early.into_iter().for_each(|early| self.files.put(early.file));
        let fail = |why: String| Error::File { path: path.to_owned(), why };
        let file = self.files.of_path(path).map_err(fail)?;
        self.stamps.insert(id, stamp);
        Ok(file)
    }
}
