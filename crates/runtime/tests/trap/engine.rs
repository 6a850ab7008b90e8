//! Traps of a real engine: regions, registry, dispatch. A trap is ours only while the region is of the file
//! that was patched.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use trapline_insn::x86_64::simulate::{Verdict as How, verdict};
use trapline_insn::x86_64::{Gpr, Options};
use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::consumer::{Consumer, ConsumerId, Flags, Hit, Installed, Verdict};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::Writer;
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, Map, Mapping, Range, Regions};
use trapline_runtime::registry::{FileSite, Files};
use trapline_runtime::x86_64::thread::{membarrier, register_membarrier};
use trapline_runtime::x86_64::{Called, Placed, Role, Sites, Step};

use crate::foreign::{Answer, expecting};
use crate::site::{ENGINE, arena, call, code, map, write};

const LINES: usize = 64;
const PROBES: usize = 16;
const PAGE: u64 = 4096;

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

/// All parts of one engine, and its only writer.
struct EngineParts {
    engine: &'static Engine,
    sites: &'static Sites,
    writer: Writer,
    map: Map,
    files: Files,
    next: u32,
}

fn parts() -> MutexGuard<'static, EngineParts> {
    static WHOLE: OnceLock<Mutex<EngineParts>> = OnceLock::new();
    arena();
    let parts = WHOLE.get_or_init(|| {
        assert!(register_membarrier());
        let memory =
            Memory { lines: leaked(LINES), words: leaked(Counts::words(LINES, PROBES)), places: leaked(64) };
        let engine: &Engine = Box::leak(Box::new(Engine::new(memory, PROBES).expect("lengths fit")));
        let regions: &Regions = Box::leak(Box::new(Regions::new(leaked(64))));
        let sites: &Sites = Box::leak(Box::new(Sites::new(engine, regions, 1)));
        assert!(ENGINE.set(sites).is_ok());
        // SAFETY: the only writer, protected by this lock; hits enter these lines.
        let writer = unsafe { Writer::new(*engine.lines(), membarrier) };
        Mutex::new(EngineParts {
            engine,
            sites,
            writer,
            map: Map::new(regions),
            files: Files::default(),
            next: 0,
        })
    });
    parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const fn file(number: u64) -> FileId {
    FileId { dev: 9, inode: number }
}

impl EngineParts {
    /// Reports a page of code as a mapping of a file.
    fn mapped(&mut self, page: u64, number: u64) {
        let access = Access { exec: true, ..Access::default() };
        let (start, end) = (RemoteAddr(page), RemoteAddr(page + PAGE));
        let mapping = Mapping { start, end, offset: FileOffset(0), file: file(number), access };
        self.map.map(&mut self.writer, &mut self.files, mapping).expect("a region");
    }
    fn site(&mut self, number: u64, offset: u64) -> FileSite {
        FileSite::new(self.files.number(file(number)).expect("a number"), FileOffset(offset)).expect("a site")
    }
    fn probe(&mut self, number: u64, offset: u64, consumer: Consumer) -> &'static Probe {
        let probe: &'static Probe =
            Box::leak(Box::new(Probe::new(self.engine, self.next, file(number), FileOffset(offset))));
        self.next += 1;
        probe.instances().provide(&self.writer, Some(8), 2, false).expect("memory");
        probe.consumers().add(&mut self.writer, Installed { id: ConsumerId(u64::from(self.next)), consumer });
        probe
    }
    /// Puts a trap on the instruction at an offset of a page.
    fn trap(&mut self, page: u64, (number, offset): (u64, u64), probe: &'static Probe, role: Role) {
        let addr = page + offset;
        // SAFETY: this is code of the test.
        let bytes = unsafe { std::slice::from_raw_parts(addr as *const u8, 15) };
        let How::Simulate(op) = verdict(bytes, Options::default()) else { panic!("{bytes:02x?}") };
        let called = Box::new([Called { probe, role }]);
        let placed = Placed { step: Step::Simulate(op), site: self.site(number, offset), called };
        self.sites.put(addr, placed, &self.map);
        write(addr, &[0xCC]);
    }
}

/// lea rax, [rdi+rsi]; ret
const SUM: [u8; 5] = [0x48, 0x8D, 0x04, 0x37, 0xC3];

fn page() -> u64 {
    let page = map(PAGE as usize);
    write(page, &SUM);
    page
}

unsafe extern "C" fn counts(data: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: `data` is an `AtomicU64`; `hit` is this hit.
    unsafe {
        (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed);
        (*hit).cookie = (*(*hit).regs).get(Gpr::Rdi);
    }
    Verdict::CONTINUE
}

unsafe extern "C" fn doubles(_: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: this hit; its registers are its own.
    unsafe {
        let regs = &mut *(*hit).regs;
        regs.set(Gpr::Rax, regs.get(Gpr::Rax) * 2 + 1000 * (*hit).cookie);
    }
    Verdict::CONTINUE
}

fn consumer(data: &'static AtomicU64, ret: bool) -> Consumer {
    Consumer {
        entry: Some(counts),
        ret: ret.then_some(doubles),
        filter: None,
        data: std::ptr::from_ref(data).cast_mut().cast(),
        flags: Flags::default(),
    }
}

#[test]
fn hits_are_the_probes() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let page = page();
    let mut parts = parts();
    parts.mapped(page, 1);
    let probe = parts.probe(1, 0, consumer(&CALLED, true));
    parts.trap(page, (1, 0), probe, Role::Entry);
    for round in 1..=1000 {
        assert_eq!(call(page, 3, round), 3 + round);
        assert_eq!((probe.counts().hits, CALLED.load(Ordering::Relaxed)), (round, round));
    }
    // The return as well: a session, with its cookie.
    parts.trap(page, (1, 4), probe, Role::Exit);
    assert_eq!(call(page, 3, 5), 3016);
    // The consumers are removed before the traps: hits without consumers.
    let EngineParts { ref mut writer, next, .. } = *parts;
    assert!(probe.consumers().remove(writer, ConsumerId(u64::from(next))));
    assert_eq!((call(page, 3, 5), CALLED.load(Ordering::Relaxed)), (8, 1001));
}

#[test]
fn a_trap_elsewhere_than_it_was_put_is_not_ours() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let page = page();
    let mut parts = parts();
    parts.mapped(page, 2);
    let probe = parts.probe(2, 0, consumer(&CALLED, false));
    parts.trap(page, (2, 0), probe, Role::Entry);
    assert_eq!((call(page, 1, 2), probe.counts().hits), (3, 1));
    let not_called = || {
        // The int3 belongs to the program now: its handler goes on behind the original instruction.
        let seen = expecting(Answer::Skip(3), || {
            call(page, 1, 2);
        });
        assert_eq!(seen.expect("the program's handler").rip, page + 1);
        assert_eq!(probe.counts().hits, 1);
    };
    parts.mapped(page, 3);
    not_called();
    let range = Range::new(RemoteAddr(page), RemoteAddr(page + PAGE)).expect("a range");
    let EngineParts { ref mut map, ref mut writer, .. } = *parts;
    map.unmap(writer, range).expect("unmapped");
    not_called();
    parts.mapped(page, 2);
    assert_eq!((call(page, 1, 2), probe.counts().hits), (3, 2));
    parts.sites.take_out(page);
    let seen = expecting(Answer::Skip(3), || {
        call(page, 1, 2);
    });
    assert!(seen.is_some() && probe.counts().hits == 2);
    write(page, &SUM);
    parts.trap(page, (2, 0), probe, Role::Entry);
    assert_eq!((call(page, 1, 2), probe.counts().hits), (3, 3));
}

#[test]
fn many_traps() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let mut parts = parts();
    let pages: Vec<u64> = (0..200).map(|_| code(&SUM)).collect();
    let probe = parts.probe(4, 0, consumer(&CALLED, false));
    let mut seen = 0;
    for &at in &pages {
        let page = at & !(PAGE - 1);
        parts.mapped(page, 4);
        let step = match verdict(&SUM, Options::default()) {
            How::Simulate(op) => Step::Simulate(op),
            other => panic!("{other:?}"),
        };
        let site = parts.site(4, at - page);
        let called = Box::new([Called { probe, role: Role::Entry }]);
        parts.sites.put(at, Placed { step, site, called }, &parts.map);
        write(at, &[0xCC]);
        seen += 1;
        assert_eq!((call(at, 1, 2), probe.counts().hits), (3, seen));
    }
    for &at in &pages {
        assert_eq!(call(at, 1, 2), 3);
    }
    assert_eq!(probe.counts().hits, 400);
}

/// A region that is mapped again, in pieces or with other access rights, is a different one for a lookup:
/// hits take the full lookup until the writer looks again.
#[test]
fn a_region_that_was_learnt_again_has_its_traps() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let page = page();
    let mut parts = parts();
    parts.mapped(page, 5);
    let probe = parts.probe(5, 0, consumer(&CALLED, false));
    parts.trap(page, (5, 0), probe, Role::Entry);
    for round in 1..=4 {
        // Writable now, as a program that patches itself makes it: the trap stays.
        let access = Access { exec: true, write: round % 2 == 1, ..Access::default() };
        let (start, end) = (RemoteAddr(page), RemoteAddr(page + PAGE));
        let mapping = Mapping { start, end, offset: FileOffset(0), file: file(5), access };
        let EngineParts { ref mut map, ref mut writer, ref mut files, sites, .. } = *parts;
        map.map(writer, files, mapping).expect("a region");
        assert_eq!((call(page, 1, 2), probe.counts().hits), (3, 2 * round - 1));
        sites.refresh(map);
        assert_eq!((call(page, 1, 2), probe.counts().hits), (3, 2 * round));
    }
}

/// Two probes at one instruction: both are called, in order, unless the first goes elsewhere.
#[test]
fn one_trap_may_be_several_probes() {
    unsafe extern "C" fn skips(_: *mut c_void, hit: *mut Hit) -> Verdict {
        // SAFETY: this hit's registers, which are its own. Goes on behind `lea`, with 9 as the sum.
        unsafe {
            let regs = &mut *(*hit).regs;
            if regs.get(Gpr::Rdi) == 1 {
                regs.set(Gpr::Rax, 9);
                regs.rip += 4;
            }
        }
        Verdict::CONTINUE
    }
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let page = page();
    let mut parts = parts();
    parts.mapped(page, 6);
    let first = parts.probe(6, 0, Consumer { entry: Some(skips), ..consumer(&CALLED, false) });
    let second = parts.probe(6, 1, consumer(&CALLED, false));
    let How::Simulate(op) = verdict(&SUM, Options::default()) else { panic!("{SUM:02x?}") };
    let called = [first, second].map(|probe| Called { probe, role: Role::Entry });
    let placed = Placed { step: Step::Simulate(op), site: parts.site(6, 0), called: Box::new(called) };
    parts.sites.put(page, placed, &parts.map);
    write(page, &[0xCC]);
    assert_eq!((call(page, 1, 2), call(page, 2, 2)), (9, 4));
    assert_eq!((first.counts().hits, second.counts().hits, CALLED.load(Ordering::Relaxed)), (2, 1, 1));
}
