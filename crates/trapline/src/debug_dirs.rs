//! Where separate debug information of a file is looked for.
//!
//! In: a file, the root of whoever runs it, folders that the user named. Out: bytes of debug files, and of what is split off
//! from debug information. What was found belongs to the file if the image says so: by build id, or by a unit's id.
//! Does not: ask a server.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trapline_image::{Bytes, DebugFile, DebugFiles, SplitFiles};

use crate::files::map;

/// Where distributions put separate debug files, under the process' own root; and folders that the user named.
pub(crate) struct DebugDirs<'a> {
    pub(crate) root: &'a Path,
    /// The file whose debug file is looked for.
    pub(crate) file: &'a Path,
    pub(crate) folders: &'a [PathBuf],
}

impl DebugDirs<'_> {
    /// The debug file's name: that of the link, or the file's own with `.debug`.
    fn name(&self, request: &DebugFile) -> PathBuf {
        match &request.link {
            Some((name, _)) => PathBuf::from(name),
            None => {
                let mut name = self.file.file_name().unwrap_or_default().to_owned();
                name.push(".debug");
                PathBuf::from(name)
            }
        }
    }
}

impl DebugFiles for DebugDirs<'_> {
    fn find(&mut self, request: &DebugFile) -> Option<Bytes> {
        let inside = |path: PathBuf| self.root.join(path.strip_prefix("/").unwrap_or(&path));
        let (store, beside) = (Path::new("/usr/lib/debug"), self.file.parent().unwrap_or(Path::new("/")));
        let (name, by_id) = (self.name(request), request.build_id_path());
        let id_in = |folder: &Path| by_id.as_ref().map(|path| folder.join(".build-id").join(path));
        // A relative folder is meant from here, or from the file's own folder, as in other tools.
        let folders = self.folders.iter().flat_map(|folder| [folder.clone(), beside.join(folder)]);
        let named = folders.flat_map(|folder| id_in(&folder).into_iter().chain([folder.join(&name)]));
        let stored = store.join(beside.strip_prefix("/").unwrap_or(beside)).join(&name);
        let by_name = [beside.join(&name), beside.join(".debug").join(&name), stored];
        let usual = id_in(store).into_iter().chain(by_name).map(inside);
        // A file without debug information, or of another build, is none.
        named.chain(usual).find_map(opened)
    }
    fn split(&self) -> Option<Arc<dyn SplitFiles>> {
        let (root, file, folders) = (self.root.to_owned(), self.file.to_owned(), self.folders.to_vec());
        Some(Arc::new(SplitDirs { root, file, folders }))
    }
}

/// A regular file's bytes. Opening another kind of file may wait for ever.
fn opened(path: PathBuf) -> Option<Bytes> {
    std::fs::metadata(&path).ok().filter(|meta| meta.is_file() && meta.len() > 0)?;
    map(&File::open(path).ok()?).ok()
}

/// Where compilers put what they split off, under the process' own root; and folders that the user named.
#[derive(Debug)]
struct SplitDirs {
    root: PathBuf,
    file: PathBuf,
    folders: Vec<PathBuf>,
}

impl SplitDirs {
    /// The folder of the file.
    fn beside(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }
    fn inside(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
    /// Files of this name in the folders that the user named; relative ones are meant from here, or from the file.
    fn named(&self, name: &Path) -> impl Iterator<Item = PathBuf> {
        let folders = self.folders.iter().flat_map(|folder| [folder.clone(), self.beside().join(folder)]);
        folders.map(move |folder| folder.join(name))
    }
}

impl SplitFiles for SplitDirs {
    fn package(&self) -> Option<Bytes> {
        let mut name = self.file.file_name()?.to_owned();
        name.push(".dwp");
        let beside = self.inside(&self.beside().join(&name));
        self.named(Path::new(&name)).chain([beside]).find_map(opened)
    }
    fn unit(&self, folder: &str, name: &str) -> Option<Bytes> {
        let path = Path::new(folder).join(name);
        let name = Path::new(path.file_name()?);
        let usual = [self.inside(&path), self.inside(&self.beside().join(name))];
        self.named(name).chain(usual).find_map(opened)
    }
    fn shared(&self, name: &str, build_id: &[u8]) -> Option<Bytes> {
        // `../../.dwz/x86_64-linux-gnu/NAME.debug`, from wherever the debug file is.
        let within = name.rfind(".dwz/").map(|at| Path::new(&name[at..]));
        let request = DebugFile { build_id: build_id.to_vec(), link: None };
        let by_id = request.build_id_path().map(|path| Path::new(".build-id").join(path));
        let known = [within, by_id.as_deref()].into_iter().flatten();
        let all = known.flat_map(|path| {
            self.named(path).chain([self.inside(&Path::new("/usr/lib/debug").join(path))]).collect::<Vec<_>>()
        });
        all.chain([self.inside(&self.beside().join(name))]).find_map(opened)
    }
}
