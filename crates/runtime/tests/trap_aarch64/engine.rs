//! Traps of a real engine: regions, registry, dispatch, consumers of every kind. A trap is ours only while
//! the region is of the file that was patched.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use trapline_insn::aarch64::Gpr;
use trapline_insn::aarch64::encode::{self, BRK};
use trapline_record::{FileId, FileOffset, RemoteAddr};
use trapline_runtime::consumer::{Consumer, ConsumerId, Flags, Hit, Installed, Verdict};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::Writer;
use trapline_runtime::native::thread::{membarrier, register_membarrier};
use trapline_runtime::native::{Called, Placed, Role, Sites, Step, gate};
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::{Access, Map, Mapping, Range, Regions};
use trapline_runtime::registry::{FileSite, Files};

use crate::foreign::{Answer, expecting};
use crate::site::{ENGINE, Text, arena, call, room, simulated, text, write};

const LINES: usize = 64;
const PROBES: usize = 64;
const PAGE: u64 = 4096;

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

/// All parts of one engine, and its only writer.
pub(crate) struct EngineParts {
    engine: &'static Engine,
    sites: &'static Sites,
    writer: Writer,
    map: Map,
    files: Files,
    next: u32,
}

pub(crate) fn parts() -> MutexGuard<'static, EngineParts> {
    static WHOLE: OnceLock<Mutex<EngineParts>> = OnceLock::new();
    arena();
    let parts = WHOLE.get_or_init(|| {
        assert!(register_membarrier());
        let memory =
            Memory { lines: leaked(LINES), words: leaked(Counts::words(LINES, PROBES)), places: leaked(64) };
        let engine: &Engine = Box::leak(Box::new(Engine::new(memory, PROBES).expect("lengths fit")));
        let regions: &Regions = Box::leak(Box::new(Regions::new(leaked(256))));
        let sites: &Sites = Box::leak(Box::new(Sites::new(engine, regions, 1)));
        assert!(ENGINE.set(sites).is_ok());
        // SAFETY: the only writer, protected by this lock; hits enter these lines.
        let writer = unsafe { Writer::new(*engine.lines(), membarrier) };
        let (map, files) = (Map::new(regions), Files::default());
        Mutex::new(EngineParts { engine, sites, writer, map, files, next: 0 })
    });
    parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

const fn file(number: u64) -> FileId {
    FileId { dev: 9, inode: number }
}

impl EngineParts {
    /// Reports a page of code as a mapping of a file.
    pub(crate) fn mapped(&mut self, page: u64, number: u64) {
        let access = Access { exec: true, ..Access::default() };
        let (start, end) = (RemoteAddr(page), RemoteAddr(page + PAGE));
        let mapping = Mapping { start, end, offset: FileOffset(0), file: file(number), access };
        self.map.map(&mut self.writer, &mut self.files, mapping).expect("a region");
    }
    fn site(&mut self, number: u64, offset: u64) -> FileSite {
        FileSite::new(self.files.number(file(number)).expect("a number"), FileOffset(offset)).expect("a site")
    }
    pub(crate) fn probe(&mut self, number: u64, offset: u64, consumers: &[Consumer]) -> &'static Probe {
        let probe: &'static Probe =
            Box::leak(Box::new(Probe::new(self.engine, self.next, file(number), FileOffset(offset))));
        self.next += 1;
        probe.instances().provide(&self.writer, Some(8), 2, false).expect("memory");
        for (which, &consumer) in (0..).zip(consumers) {
            let id = ConsumerId(u64::from(self.next) << 8 | which);
            probe.consumers().add(&mut self.writer, Installed { id, consumer });
        }
        probe
    }
    /// Puts a trap on the instruction at an offset of a page.
    pub(crate) fn trap(
        &mut self,
        page: u64,
        (number, offset): (u64, u64),
        probe: &'static Probe,
        role: Role,
        step: Step,
    ) {
        let addr = page + offset;
        let called = Box::new([Called { probe, role }]);
        let placed = Placed { step, site: self.site(number, offset), called };
        self.sites.put(addr, placed, &self.map);
        write(addr, &[BRK]);
    }
}

/// Like `trapline_plan`'s `stub::call`, which this crate does not use; for a word that contains no address.
fn stub(at: u64, word: u32, called: &[Called]) -> u64 {
    let to = room(128);
    let jump: &'static gate::Jump = Box::leak(Box::new(gate::Jump::new(at, called)));
    let argument = std::ptr::from_ref(jump) as u64;
    let gate = gate::address(std::arch::is_aarch64_feature_detected!("sve"));
    let half = |value: u64| [value as u32, (value >> 32) as u32];
    let ([a, b], [c, d]) = (half(argument), half(gate));
    let back = encode::b(to + 36, at + 4).expect("in reach");
    write(
        to,
        &[
            0xD104_83FF,
            0xA900_07E0,
            0xF900_7BFE,
            0x5800_00E0,
            0x5800_0101,
            0xD63F_0020,
            0xF940_7BFE,
            0x9104_83FF,
            word,
            back,
            a,
            b,
            c,
            d,
        ],
    );
    to
}

/// The address of a function on a page of its own, as file `number`. A counting consumer is behind a jump at
/// its entry, and at the exit if there is one.
fn jumped(number: u64, exit: Option<u64>, flags: Flags, called: &'static AtomicU64) -> u64 {
    let (text, page) = (sum(), page(sum()));
    let mut parts = parts();
    parts.mapped(page, number);
    let probe = parts.probe(number, 0, &[Consumer { flags, ..consumer(called, exit.is_some()) }]);
    let entry = (0, Role::Entry);
    for (offset, role) in [Some(entry), exit.map(|exit| (exit, Role::Exit))].into_iter().flatten() {
        let at = page + offset;
        let stub = stub(at, text.words()[offset as usize / 4], &[Called { probe, role }]);
        write(at, &[encode::b(at, stub).expect("in reach")]);
    }
    page
}

/// A function on a page of its own.
pub(crate) fn page(text: Text) -> u64 {
    let page = room(2 * PAGE).next_multiple_of(PAGE);
    write(page, text.words());
    page
}

unsafe extern "C" fn counts(data: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: `data` is an `AtomicU64`; `hit` is this hit.
    unsafe {
        (*data.cast::<AtomicU64>()).fetch_add(1, Ordering::Relaxed);
        (*hit).cookie = (*(*hit).regs).get(Gpr::X0);
    }
    Verdict::CONTINUE
}

unsafe extern "C" fn doubles(_: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: this hit; its registers are its own.
    unsafe {
        let regs = &mut *(*hit).regs;
        regs.set_result(regs.result() * 2 + 1000 * (*hit).cookie);
    }
    Verdict::CONTINUE
}

/// Returns its data as verdict, and counts nothing.
unsafe extern "C" fn says(data: *mut c_void, _: *mut Hit) -> Verdict {
    Verdict(data.addr() as u32)
}

unsafe extern "C" fn only_odd(_: *mut c_void, hit: *const Hit) -> bool {
    // SAFETY: this hit.
    unsafe { (*(*hit).regs).x[1] & 1 == 1 }
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

fn saying(verdict: Verdict) -> Consumer {
    Consumer {
        entry: Some(says),
        ret: Some(doubles),
        filter: None,
        data: std::ptr::without_provenance_mut(verdict.0 as usize),
        flags: Flags::default(),
    }
}

/// The entry is a push, the exit a `ret`.
fn sum() -> Text {
    text!(sum: "stp x29, x30, [sp, #-16]!", "add x0, x0, x1", "ldp x29, x30, [sp], #16", "ret")
}
const EXIT: u64 = 12;

#[test]
fn hits_are_the_probes() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let page = page(sum());
    let mut parts = parts();
    parts.mapped(page, 1);
    let probe = parts.probe(1, 0, &[consumer(&CALLED, true)]);
    parts.trap(page, (1, 0), probe, Role::Entry, simulated(page));
    for round in 1..=1000 {
        assert_eq!(call(page, 3, round), 3 + round);
        assert_eq!((probe.counts().hits, CALLED.load(Ordering::Relaxed)), (round, round));
    }
    // The return as well: a session, with its cookie.
    parts.trap(page, (1, EXIT), probe, Role::Exit, simulated(page + EXIT));
    assert_eq!(call(page, 3, 5), 3016);
}

#[test]
fn what_consumers_say_counts() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let mut parts = parts();
    let cases: [(u64, &[Consumer], bool, u64); 6] = [
        // Removal is requested when all consumers that were called return it.
        (10, &[saying(Verdict::REMOVE)], true, 8),
        (11, &[saying(Verdict::REMOVE), consumer(&CALLED, false)], false, 8),
        (12, &[saying(Verdict::REMOVE), saying(Verdict::REMOVE)], true, 8),
        // A return is reported to the consumer that waits for it.
        (13, &[saying(Verdict::IGNORE_RETURN)], false, 8),
        (14, &[saying(Verdict::CONTINUE)], false, 16),
        // An unknown verdict: goes on.
        (15, &[saying(Verdict(77))], false, 16),
    ];
    for (number, consumers, removal, result) in cases {
        let page = page(sum());
        parts.mapped(page, number);
        let probe = parts.probe(number, 0, consumers);
        parts.trap(page, (number, 0), probe, Role::Entry, simulated(page));
        parts.trap(page, (number, EXIT), probe, Role::Exit, simulated(page + EXIT));
        assert_eq!((call(page, 3, 5), probe.counts().hits), (result, 1), "{number}");
        assert_eq!(probe.take_removal(), removal, "{number}");
    }
}

#[test]
fn filters_are_asked_first() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let page = page(text!(filtered: "nop", "add x0, x0, x1", "ret"));
    let mut parts = parts();
    parts.mapped(page, 20);
    let probe = parts.probe(20, 0, &[Consumer { filter: Some(only_odd), ..consumer(&CALLED, false) }]);
    parts.trap(page, (20, 0), probe, Role::Entry, simulated(page));
    (0..10).for_each(|odd| assert_eq!(call(page, 1, odd), 1 + odd));
    assert_eq!((probe.counts().hits, CALLED.load(Ordering::Relaxed)), (10, 5));
}

#[test]
fn a_trap_elsewhere_than_it_was_put_is_not_ours() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let text = text!(elsewhere_mapped: "nop", "add x0, x0, x1", "ret");
    let page = page(text);
    let mut parts = parts();
    parts.mapped(page, 2);
    let probe = parts.probe(2, 0, &[consumer(&CALLED, false)]);
    parts.trap(page, (2, 0), probe, Role::Entry, simulated(page));
    assert_eq!((call(page, 1, 2), probe.counts().hits), (3, 1));
    let not_called = || {
        // The brk belongs to the program now: its handler goes on behind it.
        let seen = expecting(Answer::Skip(4), || {
            call(page, 1, 2);
        });
        assert_eq!(seen.expect("the program's handler").pc, page);
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
    let seen = expecting(Answer::Skip(4), || {
        call(page, 1, 2);
    });
    assert!(seen.is_some() && probe.counts().hits == 2);
    write(page, text.words());
    parts.trap(page, (2, 0), probe, Role::Entry, simulated(page));
    assert_eq!((call(page, 1, 2), probe.counts().hits), (3, 3));
}

/// Threads hit a real engine's probe: each adds to a row of its own.
#[test]
fn threads_count_apart() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    let page = page(sum());
    let mut parts = parts();
    parts.mapped(page, 30);
    let probe = parts.probe(30, 0, &[consumer(&CALLED, true)]);
    parts.trap(page, (30, 0), probe, Role::Entry, simulated(page));
    parts.trap(page, (30, EXIT), probe, Role::Exit, simulated(page + EXIT));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || {
                arena();
                for round in 0..500 {
                    assert_eq!(call(page, thread, round), 2 * (thread + round) + 1000 * thread);
                }
            });
        }
    });
    assert_eq!((probe.counts().hits, CALLED.load(Ordering::Relaxed)), (4000, 4000));
    assert_eq!((probe.counts().missed(), probe.counts().unreturned), (0, 0));
}

/// The gate with a real engine: like a trap's hits.
#[test]
fn hits_by_jumps_are_the_probes() {
    static CALLED: AtomicU64 = AtomicU64::new(0);
    for (number, flags) in [(40, Flags::default()), (41, Flags::GENERAL_REGS_ONLY)] {
        CALLED.store(0, Ordering::Relaxed);
        let at = jumped(number, None, flags, &CALLED);
        (1..=1000).for_each(|round| assert_eq!(call(at, 3, round), 3 + round));
        assert_eq!(CALLED.load(Ordering::Relaxed), 1000, "{flags:?}");
    }
    let at = jumped(42, Some(EXIT), Flags::default(), &CALLED);
    assert_eq!(call(at, 3, 5), 3016);
}
