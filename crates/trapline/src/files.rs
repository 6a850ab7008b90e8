//! The files behind mappings: each is opened, mapped and parsed once for all processes.
//!
//! In: a mapping or a path. Out: [`ModuleFile`]. Does not: choose functions.
#![allow(unsafe_code, reason = "files are mapped, not read: one block")]

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use trapline_image::{Bytes, DebugInfo, Image, MarkArgument, NoMatch, Pattern, Selected};
use trapline_plan::{ActionRequest, CodeMap, Scope, SystemCall, system_calls};
use trapline_record::Svma;
use trapline_tracee::{FileId, Mapping, Process};

use crate::debug_dirs::DebugDirs;
use crate::locals;
use crate::modules::Mapped;
use crate::own_threads::own_threads;
use crate::progress::{OnProgress, Step};

/// Largest text, in bytes, that may be swept as a whole, once per file.
const WHOLE_TEXT: u64 = 64 << 20;

/// One file.
#[derive(Debug)]
pub(crate) struct ModuleFile {
    pub(crate) id: FileId,
    /// Path as the process sees it.
    pub(crate) path: String,
    /// Parsed contents.
    pub(crate) image: Image,
    /// The path leads to another file by now.
    pub(crate) replaced: bool,
    whole: OnceLock<Arc<CodeMap>>,
    /// Branch targets near all that was requested so far.
    near: Mutex<Option<Arc<CodeMap>>>,
    system_calls: OnceLock<Vec<SystemCall>>,
    own_threads: OnceLock<bool>,
    selected: Mutex<HashMap<String, Selection>>,
    locals: Mutex<Locals>,
}

/// Variables at instructions, as far as they were asked for; and the debug information in which they are found, read once.
#[derive(Debug, Default)]
struct Locals {
    debug: Option<Option<DebugInfo>>,
    known: HashMap<Svma, Vec<(String, MarkArgument)>>,
}

/// What a pattern selects in a file.
type Selection = Result<Arc<[Selected]>, NoMatch>;

impl ModuleFile {
    /// What a pattern selects; looked up once for all processes. `basename` is the file's name there.
    ///
    /// # Errors
    /// [`NoMatch`] when there is nothing.
    pub(crate) fn select(&self, pattern: &Pattern, basename: &str) -> Selection {
        let mut selected = self.selected.lock().unwrap_or_else(PoisonError::into_inner);
        // A pattern shows all that it is made of.
        let known = selected.entry(format!("{basename} {pattern:?}"));
        known.or_insert_with(|| self.image.select(pattern, basename).map(Arc::from)).clone()
    }
    /// Where variables are at an instruction; looked up once for all processes.
    pub(crate) fn locals(&self, at: Svma, wanted: &[String]) -> Vec<MarkArgument> {
        let mut locals = self.locals.lock().unwrap_or_else(PoisonError::into_inner);
        let Locals { debug, known } = &mut *locals;
        let known = known.entry(at).or_default();
        let is_new = |name: &&String| !known.iter().any(|(other, _)| other == *name);
        let missing: Vec<String> = wanted.iter().filter(is_new).cloned().collect();
        if !missing.is_empty() {
            let debug = debug.get_or_insert_with(|| self.image.debug_info());
            let here = self.image.code_place(at);
            known.extend(missing.into_iter().map(|name| {
                let argument = locals::argument(debug.as_ref(), &here, &name);
                (name, argument)
            }));
        }
        let of = |name| known.iter().find(|(other, _)| other == name).map(|(_, argument)| argument.clone());
        wanted.iter().filter_map(of).collect()
    }
    /// Branch targets in the file. Where guards serve a branch that was not seen, these are only the ones
    /// near the requests, present and earlier; else all. `alone`: the calling thread makes the map alone.
    pub(crate) fn code_map(&self, requests: &[ActionRequest], guarded: bool, alone: bool) -> Arc<CodeMap> {
        let threads = if alone { 1 } else { cpus() };
        let text: u64 = self.image.text_ranges().iter().map(|range| range.1).sum();
        if !guarded && text <= WHOLE_TEXT {
            return self
                .whole
                .get_or_init(|| Arc::new(CodeMap::build(&self.image, Scope::All, threads)))
                .clone();
        }
        let mut near = self.near.lock().unwrap_or_else(PoisonError::into_inner);
        let build = || Arc::new(CodeMap::build(&self.image, Scope::For(requests), threads));
        let mut known = near.take();
        let own = known.as_mut().and_then(Arc::get_mut).map(|own| own.cover(&self.image, requests, threads));
        // Another thread is using the map to plan just now, since the same is requested of many processes.
        // Then a new one is made.
        let covered = own.is_some() || known.as_ref().is_some_and(|map| map.covers(&self.image, requests));
        let map = known.filter(|_| covered).unwrap_or_else(build);
        *near = Some(map.clone());
        map
    }
    /// The file's own system calls that may change what patches rely on.
    pub(crate) fn system_calls(&self) -> &[SystemCall] {
        self.system_calls.get_or_init(|| system_calls(&self.image))
    }
    /// Whether the file, a program, may make threads in its own way: see [`own_threads`].
    pub(crate) fn makes_own_threads(&self) -> bool {
        *self.own_threads.get_or_init(|| own_threads(&self.image))
    }
    /// Drops what was planned speculatively for a batch and never used.
    pub(crate) fn forget_speculative(&self) {
        let near = self.near.lock().unwrap_or_else(PoisonError::into_inner);
        near.iter().for_each(|map| map.forget_speculative());
    }
}

/// CPUs that this process may use. The answer takes several files, so it is asked for once.
fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// All files of a session.
#[derive(Debug, Default)]
pub(crate) struct Files {
    known: HashMap<FileId, Result<Arc<ModuleFile>, String>>,
    /// Folders in which separate debug files are looked for first.
    debug: Arc<[PathBuf]>,
    progress: OnProgress,
}

impl Files {
    /// None yet; separate debug files are looked for in these folders first, and reading is said.
    pub(crate) fn with(debug: &Arc<[PathBuf]>, progress: &OnProgress) -> Self {
        Self { debug: Arc::clone(debug), progress: progress.clone(), ..Self::default() }
    }
    /// File of a mapping, or why it cannot be used.
    pub(crate) fn of_mapping(
        &mut self,
        process: &Process,
        id: FileId,
        mapping: &Mapping,
    ) -> Result<Arc<ModuleFile>, String> {
        if let Some(known) = self.known.get(&id) {
            return known.clone();
        }
        let opened = self.opened(process, id, mapping);
        self.known.entry(id).or_insert(opened).clone()
    }
    /// Opens the files of these mappings, with two threads.
    pub(crate) fn open_all(&mut self, process: &Process, all: &[Mapped]) {
        let mut seen = HashSet::new();
        let new: Vec<&Mapped> = all.iter().filter(|one| !self.has(one.id) && seen.insert(one.id)).collect();
        if new.len() < 2 {
            return;
        }
        let next = AtomicUsize::new(0);
        let open = || {
            let one = || new.get(next.fetch_add(1, Ordering::Relaxed));
            let opened = |one: &&Mapped| (one.id, self.opened(process, one.id, &one.mapping));
            std::iter::from_fn(one).map(opened).collect::<Vec<_>>()
        };
        let opened = std::thread::scope(|scope| {
            let other = scope.spawn(open);
            let mut opened = open();
            opened.extend(other.join().into_iter().flatten());
            opened
        });
        for (id, file) in opened {
            self.known.entry(id).or_insert(file);
        }
    }
    fn opened(&self, process: &Process, id: FileId, mapping: &Mapping) -> Result<Arc<ModuleFile>, String> {
        let opened = process.open_file_of(mapping).map_err(|error| error.to_string())?;
        let root = process.folder().join("root");
        let parse = || parse(&opened.file, id, (&mapping.path, opened.replaced), (&root, &self.debug));
        self.progress.during(Step::Symbols { file: &mapping.path }, parse)
    }
    /// File by its path in the tracer's own namespace.
    pub(crate) fn of_path(&mut self, path: &Path) -> Result<Arc<ModuleFile>, String> {
        let text = path.to_string_lossy();
        let file = File::open(path).map_err(|error| format!("cannot open {text}: {error}"))?;
        let id = id_of(&file).map_err(|error| format!("cannot read {text}: {error}"))?;
        let (debug, progress) = (&self.debug, &self.progress);
        let parse = || parse(&file, id, (&text, false), (Path::new("/"), debug));
        let parse = || progress.during(Step::Symbols { file: &text }, parse);
        self.known.entry(id).or_insert_with(parse).clone()
    }
    /// Whether a file was opened.
    pub(crate) fn has(&self, id: FileId) -> bool {
        self.known.contains_key(&id)
    }
    /// Adds a file that another thread parsed ([`parsed`]), unless it was opened already.
    pub(crate) fn put(&mut self, file: Arc<ModuleFile>) {
        self.known.entry(file.id).or_insert(Ok(file));
    }
}

/// Parses a file in the tracer's own namespace, for [`Files::put`].
pub(crate) fn parsed(file: &File, id: FileId, path: &Path) -> Result<Arc<ModuleFile>, String> {
    parse(file, id, (&path.to_string_lossy(), false), (Path::new("/"), &[]))
}

/// Identity of a file.
pub(crate) fn id_of(file: &File) -> io::Result<FileId> {
    use std::os::unix::fs::MetadataExt;
    let meta = file.metadata()?;
    Ok(FileId { dev: meta.dev(), inode: meta.ino() })
}

fn parse(
    file: &File,
    id: FileId,
    (path, replaced): (&str, bool),
    (root, folders): (&Path, &[PathBuf]),
) -> Result<Arc<ModuleFile>, String> {
    let bytes = map(file).map_err(|error| format!("cannot map {path}: {error}"))?;
    // A path that was typed may be relative.
    let whole = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    let mut debug = DebugDirs { root, file: &whole, folders };
    let image = Image::parse(bytes, &mut debug).map_err(|error| format!("{path}: {error}"))?;
    Ok(Arc::new(ModuleFile {
        id,
        path: path.to_owned(),
        image,
        replaced,
        whole: OnceLock::new(),
        near: Mutex::new(None),
        system_calls: OnceLock::new(),
        own_threads: OnceLock::new(),
        selected: Mutex::default(),
        locals: Mutex::default(),
    }))
}

/// All bytes of a file.
pub(crate) fn map(file: &File) -> io::Result<Bytes> {
    // SAFETY: the mapping is private and read-only. Another process may change or truncate the file
    // meanwhile. Changed bytes are only read as input, and each site is compared with the live process before
    // it is written. A truncated program file would kill the processes that run it just as it would kill this
    // one.
    Ok(Bytes::new(unsafe { memmap2::Mmap::map(file)? }))
}
