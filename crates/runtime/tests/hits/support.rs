//! An engine, probes, and consumers that log what happens.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use trapline_record::{FileId, FileOffset};
use trapline_runtime::consumer::{Consumer, ConsumerId, Flags, Handler, Hit, Installed, Verdict};
use trapline_runtime::dispatch::{self, GoOn};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::Writer;
use trapline_runtime::native::Regs;
use trapline_runtime::native::thread::{Word, membarrier, read_word, register_membarrier};
use trapline_runtime::probe::Probe;

pub(crate) const PROBES: usize = 8;

/// Whether a process cannot read its own memory by process_vm_readv(2) (in emulators of user mode). Then a
/// frame that was left looks as if it went on: hits inside are missed until one comes from further up, and
/// instances stay.
pub(crate) fn cannot_read() -> bool {
    let word = 1_u64;
    let unknown = read_word(std::ptr::from_ref(&word) as u64) == Word::Unknown;
    if unknown {
        println!("SKIP: process_vm_readv is not to be had here");
    }
    unknown
}

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect())
}

pub(crate) fn engine(lines: usize) -> &'static Engine {
    engine_of(lines, 64)
}

/// An engine with so many places for calls in flight.
pub(crate) fn engine_of(lines: usize, places: usize) -> &'static Engine {
    assert!(register_membarrier());
    let words = leaked(Counts::words(lines, PROBES));
    let memory = Memory { lines: leaked(lines), words, places: leaked(places) };
    Box::leak(Box::new(Engine::new(memory, PROBES).expect("lengths fit")))
}

pub(crate) fn probe(engine: &'static Engine, number: u32) -> &'static Probe {
    let file = FileId { dev: 1, inode: 2 };
    Box::leak(Box::new(Probe::new(engine, number, file, FileOffset(0x1000))))
}

static NEXT: AtomicU64 = AtomicU64::new(1);

pub(crate) fn installed(consumer: Consumer) -> Installed {
    Installed { id: ConsumerId(NEXT.fetch_add(1, Ordering::Relaxed)), consumer }
}

/// The only writer of an engine; each test has an engine of its own.
pub(crate) fn writer(engine: &Engine) -> Writer {
    // SAFETY: each test changes its own probes, from one thread at a time; their hits enter these lines.
    unsafe { Writer::new(*engine.lines(), membarrier) }
}

/// CPUs of the tests' pools; instances that can be taken at once by default.
pub(crate) const CPUS: u32 = 4;
pub(crate) const ACTIVE: u32 = 16;

/// Adds a consumer.
pub(crate) fn add(probe: &Probe, consumer: Consumer) -> ConsumerId {
    let one = installed(consumer);
    let mut writer = writer(probe.engine());
    if one.consumer.ret.is_some() {
        probe.instances().provide(&writer, Some(ACTIVE), CPUS, false).expect("memory");
    }
    probe.consumers().add(&mut writer, one);
    clean(writer);
    one.id
}

/// Removes a consumer, and waits until it can no longer run.
pub(crate) fn remove(probe: &Probe, id: ConsumerId) {
    let mut writer = writer(probe.engine());
    assert!(probe.consumers().remove(&mut writer, id), "it was there");
    clean(writer);
}

fn clean(mut writer: Writer) {
    while !writer.sweep() {
        std::thread::yield_now();
    }
}

/// The instruction pointer in the tests' registers.
pub(crate) const SITE: u64 = 0x40_1000;

pub(crate) fn regs(sp: u64) -> Regs {
    let mut regs = Regs::default();
    regs.set_ip(SITE);
    regs.set_sp(sp);
    regs
}

pub(crate) fn enter(probe: &Probe, regs: &mut Regs) -> u64 {
    // SAFETY: both are alive.
    unsafe { dispatch::entry(probe, regs) }
}

pub(crate) fn leave(probe: &Probe, regs: &mut Regs) -> u64 {
    // SAFETY: both are alive.
    unsafe { dispatch::exit(probe, regs) }
}

pub(crate) fn hit(probe: &Probe) {
    assert_eq!(enter(probe, &mut regs(0x7000)), ORIGINAL);
}

/// What happened: (consumer's name, event, cookie).
pub(crate) type Log = Mutex<Vec<(char, &'static str, u64)>>;

/// A consumer that logs, leaves its name as cookie, and returns the verdict that it was given.
pub(crate) struct Logging {
    pub(crate) name: char,
    pub(crate) says: Verdict,
    pub(crate) log: &'static Log,
}

unsafe extern "C" fn log_entry(data: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: `data` is a leaked `Logging`; `hit` is this hit.
    let (one, hit) = unsafe { (&*data.cast::<Logging>(), &mut *hit) };
    one.log.lock().expect("no thread panics").push((one.name, "entry", hit.cookie));
    hit.cookie = one.name as u64;
    one.says
}

unsafe extern "C" fn log_return(data: *mut c_void, hit: *mut Hit) -> Verdict {
    // SAFETY: as above.
    let (one, hit) = unsafe { (&*data.cast::<Logging>(), &mut *hit) };
    assert_eq!(hit.site, SITE);
    one.log.lock().expect("no thread panics").push((one.name, "return", hit.cookie));
    one.says
}

pub(crate) fn log() -> &'static Log {
    Box::leak(Box::default())
}

/// Kinds of consumers, as in the kernel's test of their combinations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Entry,
    Return,
    Session,
}

pub(crate) fn logging(log: &'static Log, name: char, kind: Kind, says: Verdict) -> Consumer {
    let data: *mut Logging = Box::leak(Box::new(Logging { name, says, log }));
    Consumer {
        entry: (kind != Kind::Return).then_some(log_entry as Handler),
        ret: (kind != Kind::Entry).then_some(log_return as Handler),
        filter: None,
        data: data.cast(),
        flags: Flags::default(),
    }
}

/// A consumer with an entry handler of the test's own.
pub(crate) fn calling(handler: Handler, data: *mut c_void) -> Consumer {
    Consumer { entry: Some(handler), ret: None, filter: None, data, flags: Flags::default() }
}

pub(crate) fn taken(log: &Log) -> Vec<(char, &'static str, u64)> {
    std::mem::take(&mut *log.lock().expect("no thread panics"))
}

pub(crate) const ORIGINAL: u64 = GoOn::Original as u64;
