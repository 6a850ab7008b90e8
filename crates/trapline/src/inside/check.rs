//! What can be said of a request before anything is planned: of its file, and of the instruction.
//!
//! In: paths and offsets. Out: parsed files, or the error that the kernel's probes have for the same. Does not: need the file to be mapped;
//! what only the mapped code shows is in the planner's refusals; what the instruction says is each processor's own (`check` in the twin folders).

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use trapline_record::FileId;

use super::Error;
use super::early::Early;
use super::state::State;
use crate::files::ModuleFile;

/// What tells that a file was written to: length, and time of the last change of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    len: u64,
    written: (i64, i64),
}

/// Of each file, as it was when it was registered first.
pub(super) type Stamps = HashMap<FileId, Stamp>;

/// A regular file, what it is, and as of when.
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
    /// A file, parsed, if it is the one that it was.
    pub(super) fn file(&mut self, path: &Path) -> Result<Arc<ModuleFile>, Error> {
        let (_, id, stamp) = opened(path)?;
        if self.stamps.get(&id).is_some_and(|known| *known != stamp) {
            return Err(Error::Changed { path: path.to_owned() });
        }
        let early = self.early.take_if(|early| early.is_of(path)).and_then(Early::wait);
        let early = early.filter(|early| early.file.id == id && early.stamp == stamp);
        early.into_iter().for_each(|early| self.files.put(early.file));
        let fail = |why: String| Error::File { path: path.to_owned(), why };
        let file = self.files.of_path(path).map_err(fail)?;
        self.stamps.insert(id, stamp);
        Ok(file)
    }
}
