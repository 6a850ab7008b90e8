//! Regions, a registry and their one writer.

use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::{Inside, Lines, Seal, ThreadPointer, Writer};
use trapline_runtime::native::thread::{membarrier, register_membarrier};
use trapline_runtime::regions::{Access, Map, MapError, Mapping, Range, Regions};
use trapline_runtime::registry::{Files, Registry};

pub(crate) const PAGE: u64 = 4096;

pub(crate) fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

pub(crate) fn file(number: u64) -> FileId {
    FileId { dev: 7, inode: 100 + number }
}

pub(crate) const CODE: Access = Access { exec: true, write: false, shared: false, huge: false };

/// A mapping of whole pages: first page, number of pages, file, its first page in the file.
pub(crate) fn mapping(start: u64, pages: u64, file_number: u64, offset: u64) -> Mapping {
    Mapping {
        start: RemoteAddr(start * PAGE),
        end: RemoteAddr((start + pages) * PAGE),
        offset: FileOffset(offset * PAGE),
        file: file(file_number),
        access: CODE,
    }
}

pub(crate) fn range(start: u64, pages: u64) -> Range {
    Range::new(RemoteAddr(start * PAGE), RemoteAddr((start + pages) * PAGE)).expect("pages")
}

/// What readers share.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    pub(crate) engine: &'static Engine,
    pub(crate) regions: &'static Regions,
    pub(crate) registry: &'static Registry,
}

/// What a writer holds.
pub(crate) struct Writing {
    pub(crate) writer: Writer,
    pub(crate) map: Map,
    pub(crate) files: Files,
}

pub(crate) fn new(entries: usize) -> (Shared, Writing) {
    assert!(register_membarrier());
    let memory = Memory { lines: leaked(8), words: leaked(Counts::words(8, 64)), places: leaked(8) };
    let engine: &Engine = Box::leak(Box::new(Engine::new(memory, 64).expect("lengths fit")));
    let regions: &Regions = Box::leak(Box::new(Regions::new(leaked(entries))));
    let registry: &Registry = Box::leak(Box::default());
    // SAFETY: the only writer; readers enter these lines.
    let writer = unsafe { Writer::new(*engine.lines(), membarrier) };
    (
        Shared { engine, regions, registry },
        Writing { writer, map: Map::new(regions), files: Files::default() },
    )
}

impl Writing {
    pub(crate) fn map(&mut self, mapping: Mapping) -> Result<(), MapError> {
        self.map.map(&mut self.writer, &mut self.files, mapping)
    }
    pub(crate) fn unmap(&mut self, range: Range) -> Result<(), MapError> {
        self.map.unmap(&mut self.writer, range)
    }
}

pub(crate) fn inside<T>(lines: &Lines, f: impl FnOnce(&Inside<'_>) -> T) -> T {
    let seal = Seal::new();
    let (_, line) = lines.of(ThreadPointer::own()).expect("a line");
    f(&line.enter(&seal))
}
