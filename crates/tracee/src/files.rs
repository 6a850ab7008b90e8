//! The files that a process maps, and the paths by which we can open them.
//!
//! In: a process, its mappings, paths as the kernel gives them. Out: open files, and paths as we see them. Invariants:
//! a file is taken for the mapped one only if device and inode are equal. Does not: read the files.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{TargetError, remedy};
use crate::maps::{DELETED, FileId, FileOf, Mapping};
use crate::process::Process;

impl Process {
    /// Handles a file with a name that itself ends in the words that the kernel appends to the names of
    /// deleted files.
    pub(crate) fn look_at_name(&self, mapping: &mut Mapping) {
        let Some(id) = mapping.file.filter(|_| !is_memfd(mapping)) else { return };
        let mut name = mapping.file_path.clone().into_os_string();
        name.push(DELETED);
        if self.leads_to(Path::new(&name), id, mapping).is_some() {
            mapping.path.push_str(DELETED);
            (mapping.file_path, mapping.deleted) = (name.into(), false);
        }
    }
    /// A path from the kernel, as we may see it: below the target's root, or below our own. For a process in
    /// a `chroot` the kernel gives the latter.
    pub(crate) fn seen_as(&self, path: &Path) -> [PathBuf; 2] {
        let below = path.strip_prefix("/").unwrap_or(path);
        [self.folder().join("root").join(below), path.to_owned()]
    }
    /// A path by which we see the very file that is mapped, if there is one.
    fn leads_to(&self, path: &Path, id: FileId, mapping: &Mapping) -> Option<PathBuf> {
        self.seen_as(path).into_iter().find(|seen| {
            fs::metadata(seen)
                .is_ok_and(|m| m.ino() == id.inode && same_device(m.dev(), id, mapping, self.pid()))
        })
    }
    /// A path of the target's by which the file that it maps can be opened. If there is none, the path below
    /// the target's own root.
    #[must_use]
    pub fn path_to(&self, path: &str, id: FileId) -> PathBuf {
        let is_it = |seen: &PathBuf| fs::metadata(seen).is_ok_and(|m| m.ino() == id.inode);
        self.seen_as(Path::new(path)).into_iter().find(is_it).unwrap_or_else(|| self.rooted(path))
    }
    /// The kernel's link to the very file that is mapped. Only root can follow it.
    #[must_use]
    pub fn link_to(&self, mapping: &Mapping) -> PathBuf {
        mapping.map_files_path(self.pid())
    }
    /// Opens the file of a mapping, by map_files, else by path in the target's root with device and inode
    /// compared.
    ///
    /// # Errors
    /// When neither way gives the very file that is mapped.
    pub fn open_file_of(&self, mapping: &Mapping) -> Result<FileOf, TargetError> {
        let fail = |why: String| TargetError::File { path: mapping.path.clone().into(), why };
        let id = mapping.file.ok_or_else(|| fail("it is not a file".into()))?;
        let on_disk = self.leads_to(&mapping.file_path, id, mapping).filter(|_| !mapping.deleted);
        // A file without a name cannot be replaced by another file of that name.
        let replaced = on_disk.is_none() && !is_memfd(mapping);
        let link = mapping.map_files_path(self.pid());
        let failed = |error: io::Error| fail(format!("{error}{}", remedy(&error)));
        match File::open(&link) {
            Ok(file) => return Ok(FileOf { file, path: on_disk.unwrap_or(link), replaced }),
            // No other way leads further.
            Err(error) if !remedy(&error).is_empty() => return Err(failed(error)),
            Err(_) => {}
        }
        let path = on_disk.ok_or_else(|| {
            let why = if replaced {
                "it was replaced on disk since the process mapped it; restart the program"
            } else {
                "it is memory that only root can open (/proc/PID/map_files)"
            };
            fail(why.into())
        })?;
        let file = File::open(&path).map_err(failed)?;
        Ok(FileOf { file, path, replaced })
    }
    /// A path of the target's, in the form in which we can open it.
    #[must_use]
    pub fn rooted(&self, path: &str) -> PathBuf {
        self.folder().join("root").join(path.trim_start_matches('/'))
    }
}

fn is_memfd(mapping: &Mapping) -> bool {
    mapping.file_path.as_os_str().as_bytes().starts_with(b"/memfd:")
}

/// Some file systems show one device in maps and another in stat. Then the mapping itself decides, if we may
/// look at it.
fn same_device(dev: u64, id: FileId, mapping: &Mapping, pid: u32) -> bool {
    dev == id.dev
        || fs::metadata(mapping.map_files_path(pid)).is_ok_and(|m| m.dev() == dev && m.ino() == id.inode)
}
