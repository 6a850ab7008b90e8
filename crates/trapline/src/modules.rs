//! Modules: the files with code that a process has mapped, each with the address at which it was loaded.
//!
//! In: mappings. Out: [`Mapped`] in order of address, the program itself first. The vdso and the tracer's own
//! memory are no files. Does not: open files before they are needed.

use std::path::Path;
use std::sync::Arc;

use trapline_image::Image;
use trapline_order::Order as _;
use trapline_record::addr::Bias;
use trapline_record::{FileOffset, Svma};
use trapline_tracee::{FileId, Mapping, Process};

use crate::files::{Files, ModuleFile};
use crate::names::{ProcessNames, beside, leads_to};

/// One executable mapping of a file.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    pub(crate) id: FileId,
    pub(crate) mapping: Mapping,
    pub(crate) is_program: bool,
}

/// A file in a process, parsed.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    pub(crate) file: Arc<ModuleFile>,
    /// Path by which the user knows it, which may be a link to the file.
    pub(crate) called: String,
    pub(crate) bias: Bias,
    pub(crate) is_program: bool,
}

impl Module {
    /// Whether the mapping belongs to this load of the file.
    pub(crate) fn is_at(&self, mapping: &Mapping) -> bool {
        bias(&self.file.image, mapping).is_some_and(|bias| bias == self.bias)
    }
    /// Last part of the path by which the user knows it.
    pub(crate) fn basename(&self) -> &str {
        name_of(&self.called)
    }
}

/// How much of a file one load of it maps, where the file is mapped in other places as well. V8 maps some of its program's
/// code a second time, near the code that it makes.
pub(crate) struct MappedPart<'a> {
    module: &'a Module,
    /// Mappings of the file's code; none if all of them belong to this load.
    code: Vec<&'a Mapping>,
}

impl<'a> MappedPart<'a> {
    pub(crate) fn of(module: &'a Module, maps: &'a [Mapping]) -> Self {
        let is_code = |one: &&Mapping| one.file == Some(module.file.id) && one.perms.exec;
        let code: Vec<&Mapping> = maps.iter().filter(is_code).collect();
        let is_alone = code.iter().all(|one| module.is_at(one));
        Self { module, code: if is_alone { Vec::new() } else { code } }
    }
    /// Whether a place in the file is mapped elsewhere, and not by this load.
    pub(crate) fn lacks(&self, at: Svma, offset: FileOffset) -> bool {
        let has = |one: &&&Mapping| (one.offset..one.offset + (one.end - one.start)).contains(&offset);
        let live = self.module.bias.live(at);
        let is_here = |one: &&Mapping| (one.start..one.end).contains(&live);
        let mut having = self.code.iter().filter(has).peekable();
        having.peek().is_some() && !having.any(is_here)
    }
}

/// Whether a file is a C library, or a loader that contains one.
pub(crate) fn is_c_library(path: &str) -> bool {
    ["libc.so", "libc-2.", "libc.musl-", "ld-musl-"].iter().any(|start| name_of(path).starts_with(start))
}

/// Last part of a path.
pub(crate) fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// First executable mapping of each load of a file, the program first.
pub(crate) fn mapped(process: &Process, maps: &[Mapping]) -> Vec<Mapped> {
    let program = process.exe_path().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let mut out: Vec<Mapped> = Vec::new();
    for mapping in maps.iter().filter(|mapping| mapping.perms.exec && is_program_file(mapping)) {
        let Some(id) = mapping.file else { continue };
        let known = |other: &Mapped| {
            // The same load: one file, and addresses that differ as the offsets do (segments of one module).
            other.id == id
                && mapping.start.0.abs_diff(other.mapping.start.0) < 1 << 31
                && mapping.offset > other.mapping.offset
        };
        if !out.iter().any(known) {
            out.push(Mapped { id, mapping: mapping.clone(), is_program: mapping.path == program });
        }
    }
    out.order_by_key(|one| !one.is_program);
    out
}

fn is_program_file(mapping: &Mapping) -> bool {
    !mapping.path.starts_with('[') && !is_ours(mapping)
}

/// Whether a tracer has made the mapping.
pub(crate) fn is_ours(mapping: &Mapping) -> bool {
    mapping.path.starts_with("/memfd:trapline")
}

impl Mapped {
    /// Opens and parses the file, or returns why that failed.
    pub(crate) fn open(&self, process: &Process, files: &mut Files) -> Result<Module, String> {
        let file = files.of_mapping(process, self.id, &self.mapping)?;
        let bias = bias(&file.image, &self.mapping).ok_or_else(|| {
            format!("{}: the mapping at {} is none of its segments", file.path, self.mapping.start)
        })?;
        Ok(Module { called: file.path.clone(), file, bias, is_program: self.is_program })
    }
    /// Whether a file name as typed means this file.
    pub(crate) fn is_named(&self, process: &Process, wanted: &str) -> bool {
        self.path_as(process, wanted).is_some()
    }
    /// Path that is meant, if a file name as typed means this file. It may be a path that leads to it, its
    /// last part, a library's short name, or a link beside it; for the program, also the name of the process.
    pub(crate) fn path_as(&self, process: &Process, wanted: &str) -> Option<String> {
        let path = &self.mapping.path;
        if wanted.contains('/') {
            let same = path == wanted || self.is_same_file(process, wanted);
            let absolute = if wanted.starts_with('/') { wanted } else { path };
            return same.then(|| absolute.to_owned());
        }
        if is_short_name(path, wanted) {
            return Some(path.clone());
        }
        let link = || beside(process, path, self.id, wanted);
        let called = || self.is_program && ProcessNames::of(process).is_ok_and(|names| names.mean(wanted));
        link().or_else(|| called().then(|| self.usual_path(process)))
    }
    /// The path that reports use when the user has named no file.
    pub(crate) fn usual_path(&self, process: &Process) -> String {
        let path = &self.mapping.path;
        let link = || ProcessNames::of(process).ok()?.path(process, path, self.id);
        self.is_program.then(link).flatten().unwrap_or_else(|| path.clone())
    }
    /// Whether the path leads to this very file, in the process' namespace or in the tracer's.
    fn is_same_file(&self, process: &Process, path: &str) -> bool {
        (path.starts_with('/') && leads_to(&process.rooted(path), self.id))
            || leads_to(Path::new(path), self.id)
    }
}

/// Whether a name is short for a file: `libc`, `c`, `libc.so`, `libc.so.6` for `/lib/libc.so.6` and
/// `/lib/libc-2.31.so`; `git` for `/usr/bin/git`.
#[must_use]
pub fn is_short_name(path: &str, wanted: &str) -> bool {
    let base = name_of(path);
    let stem = base.split_once(".so").map(|(stem, rest)| (stem, rest.is_empty() || rest.starts_with('.')));
    let is_stem = |stem: &str| {
        let versionless =
            stem.rsplit_once('-').filter(|(_, version)| version.starts_with(|c: char| c.is_ascii_digit()));
        [Some(stem), versionless.map(|(name, _)| name)]
            .into_iter()
            .flatten()
            .any(|name| name == wanted || name.strip_prefix("lib") == Some(wanted))
    };
    base == wanted
        || base.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('.') && wanted.contains(".so"))
        || stem.is_some_and(|(stem, is_library)| is_library && is_stem(stem))
}

fn bias(image: &Image, mapping: &Mapping) -> Option<Bias> {
    const PAGE: u64 = 4096;
    let at = mapping.offset.0;
    let holds = |segment: &&trapline_image::Segment| {
        let low = segment.offset.0 & !(PAGE - 1);
        (low..segment.offset.0 + segment.filesz).contains(&at)
    };
    let segment = image.segments().find(holds)?;
    let svma = segment.svma.0.wrapping_add(at).wrapping_sub(segment.offset.0);
    Some(Bias(mapping.start.0.wrapping_sub(svma)))
}

#[cfg(test)]
mod tests {
    use super::is_short_name;

    #[test]
    fn libraries_have_short_names() {
        for (path, wanted) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", "libc"),
            ("/lib/x86_64-linux-gnu/libc.so.6", "c"),
            ("/lib/x86_64-linux-gnu/libc.so.6", "libc.so"),
            ("/lib/x86_64-linux-gnu/libc.so.6", "libc.so.6"),
            ("/lib/libc-2.31.so", "libc"),
            ("/usr/lib/libstdc++.so.6.0.30", "libstdc++"),
            ("/usr/bin/git", "git"),
        ] {
            assert!(is_short_name(path, wanted), "{wanted} for {path}");
        }
        for (path, wanted) in [
            ("/lib/libcrypto.so.3", "libc"),
            ("/usr/bin/git-shell", "git"),
            ("/lib/libc.so.6", "lib"),
            ("/a/x.sock", "x"),
        ] {
            assert!(!is_short_name(path, wanted), "{wanted} for {path}");
        }
    }
}
