//! Ours: the room `runtime`, as a trap's handler uses it.
#![allow(unsafe_code, reason = "registers probes that are leaked")]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::{Seal, ThreadPointer, Writer};
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, Map, Mapping, Range, Regions};
use trapline_runtime::registry::{Files, Registry, Site};
use trapline_runtime::x86_64::thread::{membarrier, register_membarrier};

use super::{Lookup, Mapped};

const LINES: usize = 64;

/// Regions, registry, and their writer.
#[derive(Debug)]
pub(super) struct Ours {
    engine: &'static Engine,
    regions: &'static Regions,
    registry: Registry,
    writing: Mutex<Writing>,
}

#[derive(Debug)]
struct Writing {
    writer: Writer,
    map: Map,
    files: Files,
}

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

/// Words from a line's start on, so that no two rows share a line.
fn leaked_words(n: usize) -> &'static [AtomicU64] {
    #[derive(Default)]
    #[repr(C, align(128))]
    struct Lines([AtomicU64; 16]);
    let lines: &[Lines] = leaked(n.div_ceil(16));
    // SAFETY: each is sixteen words without padding, and they are leaked.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), n) }
}

fn file(number: u64) -> FileId {
    FileId { dev: 1, inode: number }
}

impl Ours {
    pub(super) fn new(regions: usize) -> Self {
        assert!(register_membarrier(), "membarrier, since Linux 4.14");
        let memory =
            Memory { lines: leaked(LINES), words: leaked_words(Counts::words(LINES, 1)), calls: leaked(1) };
        let engine: &Engine = Box::leak(Box::new(Engine::new(memory, 1).expect("lengths fit")));
        let regions: &Regions = Box::leak(Box::new(Regions::new(leaked(regions))));
        // SAFETY: the only writer, behind a mutex; `find` enters these lines.
        let writer = unsafe { Writer::new(*engine.lines(), membarrier) };
        let writing = Mutex::new(Writing { writer, map: Map::new(regions), files: Files::default() });
        Self { engine, regions, registry: Registry::default(), writing }
    }
    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn site(&self, number: u64, offset: u64) -> Site {
        let number = self.writing().files.number(file(number)).expect("few files");
        Site::new(number, FileOffset(offset)).expect("small offsets")
    }
    /// What a trap's handler does before the instruction runs: finds the probe and calls its consumers, of which there are none.
    #[cfg(test)]
    pub(super) fn hit(&self, addr: u64) -> bool {
        let seal = Seal::new();
        let Some((row, line)) = self.engine.lines().of(ThreadPointer::own()) else { return false };
        let inside = line.enter(&seal);
        let Ok(Some(probe)) = self.registry.at(self.regions, &inside, RemoteAddr(addr)) else { return false };
        let mut regs = trapline_insn::x86_64::Regs::default();
        // SAFETY: registers of nobody; the probe is alive while this is inside.
        unsafe { trapline_runtime::dispatch::entered(&inside, row, probe, &mut regs) };
        true
    }
    /// The locked path.
    #[cold]
    fn find_locked(&self, addr: RemoteAddr) -> Option<u64> {
        let writing = self.writing();
        let site = writing.map.find(addr)?.site()?;
        let seal = Seal::new();
        let (_, line) = self.engine.lines().of(ThreadPointer::own())?;
        self.registry.find(&line.enter(&seal), site).map(Probe::address)
    }
}

impl Lookup for Ours {
    fn find(&self, addr: u64) -> Option<u64> {
        let (addr, seal) = (RemoteAddr(addr), Seal::new());
        let (_, line) = self.engine.lines().of(ThreadPointer::own())?;
        let inside = line.enter(&seal);
        match self.registry.at(self.regions, &inside, addr) {
            Ok(probe) => probe.map(Probe::address),
            Err(_) => {
                drop(inside);
                self.find_locked(addr)
            }
        }
    }
    fn map(&self, mapped: Mapped) {
        let Writing { writer, map, files } = &mut *self.writing();
        let mapping = Mapping {
            start: RemoteAddr(mapped.start),
            end: RemoteAddr(mapped.end),
            offset: FileOffset(mapped.offset),
            file: file(mapped.file),
            access: Access { exec: true, ..Access::default() },
        };
        map.map(writer, files, mapping).expect("room");
        writer.sweep();
    }
    fn unmap(&self, mapped: Mapped) {
        let Writing { writer, map, .. } = &mut *self.writing();
        let range = Range::new(RemoteAddr(mapped.start), RemoteAddr(mapped.end)).expect("pages");
        map.unmap(writer, range).expect("room");
        writer.sweep();
    }
    fn register(&self, number: u64, offset: u64) -> u64 {
        let site = self.site(number, offset);
        let probe = Box::leak(Box::new(Probe::new(self.engine, 0, file(number), FileOffset(offset))));
        let address = probe.address();
        let writing = &mut *self.writing();
        // SAFETY: leaked.
        unsafe { self.registry.put(&mut writing.writer, site, NonNull::from(probe)) };
        writing.writer.sweep();
        address
    }
    fn unregister(&self, number: u64, offset: u64) {
        let site = self.site(number, offset);
        self.registry.take_out(&mut self.writing().writer, site);
    }
    /// Nothing of ours changes there, so nothing is said.
    fn elsewhere(&self, change: &mut dyn FnMut()) {
        change();
    }
}
