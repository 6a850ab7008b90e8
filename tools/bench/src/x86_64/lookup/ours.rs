//! Our lookup: the crate `runtime`, used as a trap's handler uses it. The table of traps names probe and
//! region; the region has its own sequence number.
#![allow(unsafe_code, reason = "memory of its own, as words; the engine's one writer")]

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::{Seal, ThreadPointer, Writer};
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, Map, Mapping, Range, Regions};
use trapline_runtime::registry::{FileSite, Files};
use trapline_runtime::x86_64::thread::{membarrier, register_membarrier};
use trapline_runtime::x86_64::{Called, Placed, Role, Sites, Step};

use super::operations::{Lookup, Mapped};

/// As in `trapline::inside`. With 64 lines, two threads with stacks 2 MiB apart began at the same line in one
/// run of ten. Each lookup of the thread that had to go on to the next line then read a line that the other
/// thread stores to: 39 ns instead of 11.
const LINES: usize = 4096;

/// Regions, traps, and what writes them.
#[derive(Debug)]
pub(super) struct Ours {
    engine: &'static Engine,
    sites: &'static Sites,
    writing: Mutex<Writing>,
}

#[derive(Debug)]
struct Writing {
    writer: Writer,
    map: Map,
    files: Files,
    /// The registered probes, by file and offset.
    probes: BTreeMap<(u64, u64), &'static Probe>,
    /// The present mappings.
    mapped: Vec<Mapped>,
}

impl Writing {
    fn site(&mut self, number: u64, offset: u64) -> FileSite {
        let number = self.files.number(file(number)).expect("few files");
        FileSite::new(number, FileOffset(offset)).expect("small offsets")
    }
    /// Puts a trap for a probe into a mapping, if the probe lies there.
    fn put(&mut self, sites: &Sites, mapped: Mapped, offset: u64, probe: &'static Probe) {
        if let Some(addr) = address(mapped, offset) {
            let site = self.site(mapped.file, offset);
            let called = Box::new([Called { probe, role: Role::Entry }]);
            sites.put(addr, Placed { step: Step::At(addr), site, called }, &self.map);
        }
    }
}

/// Address at which a file's byte is mapped.
fn address(mapped: Mapped, offset: u64) -> Option<u64> {
    let addr = offset.checked_sub(mapped.offset)? + mapped.start;
    (addr < mapped.end).then_some(addr)
}

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

/// `n` words that begin at the start of a cache line, so that no two tables share a line.
fn leaked_words(n: usize) -> &'static [AtomicU64] {
    #[derive(Default)]
    #[repr(C, align(128))]
    struct Lines([AtomicU64; 16]);
    let lines: &[Lines] = leaked(n.div_ceil(16));
    // SAFETY: each line is sixteen words without padding, and the lines are leaked.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), n) }
}

fn file(number: u64) -> FileId {
    FileId { dev: 1, inode: number }
}

impl Ours {
    pub(super) fn new(regions: usize) -> Self {
        assert!(register_membarrier(), "membarrier, since Linux 4.14");
        let memory =
            Memory { lines: leaked(LINES), words: leaked_words(Counts::words(LINES, 1)), places: leaked(1) };
        let engine: &Engine = Box::leak(Box::new(Engine::new(memory, 1).expect("lengths fit")));
        let regions: &Regions = Box::leak(Box::new(Regions::new(leaked(regions))));
        // SAFETY: the only writer, behind a mutex; `find` enters these lines.
        let writer = unsafe { Writer::new(*engine.lines(), membarrier) };
        let (map, files) = (Map::new(regions), Files::default());
        let writing = Mutex::new(Writing { writer, map, files, probes: BTreeMap::new(), mapped: Vec::new() });
        let sites: &Sites = Box::leak(Box::new(Sites::new(engine, regions, 0)));
        Self { engine, sites, writing }
    }
    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// What a trap's handler does before the instruction runs: it finds the probe and calls its consumers.
    /// There are none here.
    #[cfg(test)]
    pub(super) fn hit(&self, addr: u64) -> bool {
        use trapline_runtime::x86_64::{Answer, Traps};
        let mut regs = trapline_insn::x86_64::Regs::default();
        // SAFETY: the registers are a local value, not those of a trapped thread.
        matches!(unsafe { self.sites.hit(addr, &mut regs) }, Answer::Hit(_))
    }
    /// The fallback of `find`: searches the mappings under the writer's lock.
    #[cold]
    fn find_locked(&self, addr: u64) -> Option<u64> {
        let writing = self.writing();
        let mapped = writing.mapped.iter().find(|one| (one.start..one.end).contains(&addr))?;
        let place = (mapped.file, addr - mapped.start + mapped.offset);
        writing.probes.get(&place).map(|probe| probe.address())
    }
}

impl Lookup for Ours {
    fn find(&self, addr: u64) -> Option<u64> {
        let seal = Seal::new();
        let (_, line) = self.engine.lines().of(ThreadPointer::own())?;
        let inside = line.enter(&seal);
        match self.sites.probe_at(&inside, addr) {
            Ok(probe) => probe.map(Probe::address),
            Err(_) => {
                drop(inside);
                self.find_locked(addr)
            }
        }
    }
    fn map(&self, mapped: Mapped) {
        let writing = &mut *self.writing();
        let mapping = Mapping {
            start: RemoteAddr(mapped.start),
            end: RemoteAddr(mapped.end),
            offset: FileOffset(mapped.offset),
            file: file(mapped.file),
            access: Access { exec: true, ..Access::default() },
        };
        writing.map.map(&mut writing.writer, &mut writing.files, mapping).expect("room");
        writing.writer.sweep();
        writing.mapped.push(mapped);
        let probes: Vec<_> = writing.probes.range((mapped.file, 0)..(mapped.file + 1, 0)).collect();
        let probes: Vec<_> = probes.into_iter().map(|(place, probe)| (place.1, *probe)).collect();
        for (offset, probe) in probes {
            writing.put(self.sites, mapped, offset, probe);
        }
    }
    fn unmap(&self, mapped: Mapped) {
        let writing = &mut *self.writing();
        let range = Range::new(RemoteAddr(mapped.start), RemoteAddr(mapped.end)).expect("pages");
        writing.map.unmap(&mut writing.writer, range).expect("room");
        writing.writer.sweep();
        writing.mapped.retain(|one| *one != mapped);
        // Else they would be found again where the same bytes are mapped later, although their probes may be
        // gone by then.
        let offsets = writing.probes.range((mapped.file, 0)..(mapped.file + 1, 0)).map(|(place, _)| place.1);
        offsets.filter_map(|offset| address(mapped, offset)).for_each(|addr| self.sites.take_out(addr));
    }
    fn register(&self, number: u64, offset: u64) -> u64 {
        let probe: &'static Probe =
            Box::leak(Box::new(Probe::new(self.engine, 0, file(number), FileOffset(offset))));
        let writing = &mut *self.writing();
        writing.probes.insert((number, offset), probe);
        let mapped: Vec<Mapped> = writing.mapped.iter().copied().filter(|one| one.file == number).collect();
        for one in mapped {
            writing.put(self.sites, one, offset, probe);
        }
        probe.address()
    }
    fn unregister(&self, number: u64, offset: u64) {
        let writing = &mut *self.writing();
        writing.probes.remove(&(number, offset));
        let mapped = writing.mapped.iter().filter(|one| one.file == number);
        mapped.filter_map(|one| address(*one, offset)).for_each(|addr| self.sites.take_out(addr));
    }
    /// No region of ours changes there, so there is nothing to report.
    fn elsewhere(&self, change: &mut dyn FnMut()) {
        change();
    }
}
