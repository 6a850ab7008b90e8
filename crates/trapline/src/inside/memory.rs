//! The engine's memory, mapped once and for good.
//!
//! In: nothing. Out: an [`Engine`] that lives as long as the process. Pages that nobody writes to take no memory. Lines are wiped in a
//! forked child, whose threads are others.
#![allow(
    unsafe_code,
    reason = "anonymous mappings made into slices of atomics: zeroed, shared with nobody, never unmapped"
)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use trapline_record::{FileId, FileOffset};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::{Line, Writer};
use trapline_runtime::instances::{Hint, Place};
use trapline_runtime::native::thread::{membarrier, register_core_sync, register_membarrier};
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::Slot;

use super::arch::room;

/// What there is room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    /// Threads that can be told apart; further ones' hits count as missed.
    pub(super) lines: usize,
    /// Probes at most.
    pub(super) probes: usize,
}

impl Room {
    /// As much as address space allows; pages that nobody writes to take no memory.
    pub(super) const USUAL: Self = Self { lines: 4096, probes: 1 << 17 };
}
/// Mappings of code that are known at a time, at most; those that went stay for pictures until their slot is needed.
const REGIONS: usize = 1 << 16;
/// Places for calls in flight: those of 1024 stack pages, 8 MiB if all are used. More pages share them, and calls take longer.
const PLACES: usize = 1 << 18;
/// Hints at slots, of as many pages.
const HINTS: usize = 1 << 18;
/// Quick hints at slots: four for each, so that few are two calls'; and as many that stay 0.
const QUICK: usize = 1 << 17;

/// Where the counts' address space is asked for: terabytes from where programs and libraries lie. The kernel would put these gigabytes right
/// below the libraries, where jumps look for room.
const FAR: usize = 0x2000_0000_0000;
/// The same for probes.
const PROBES_AT: usize = 0x1000_0000_0000;

static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();

/// The engine of this process, made if there is none yet. For the one who holds the engine's lock: a fork waits for that, so no child finds it
/// half made, waiting for a thread that it does not have.
pub(super) fn engine() -> Option<&'static Engine> {
    ENGINE.get_or_init(make).as_ref()
}

/// The same for anyone, if there is one.
pub(super) fn made() -> Option<&'static Engine> {
    ENGINE.get()?.as_ref()
}

/// Its one writer; for the one who holds the engine's lock, once.
pub(super) fn writer(engine: &'static Engine) -> Writer {
    // SAFETY: only `State`, of which there is one, asks for it; stubs and consumers' lists use this engine's lines; `make`
    // registered for the membarrier.
    unsafe { Writer::new(*engine.lines(), membarrier) }
}

fn make() -> Option<Engine> {
    if !register_membarrier() {
        return None;
    }
    if is_alone() {
        // Now, as it takes no time: with other threads about, the kernel has each wait until all CPUs were seen elsewhere. If it is refused, the first write is told.
        register_core_sync();
    }
    let room = room();
    let lines: &'static [Line] = zeroed(0, room.lines, libc::MADV_WIPEONFORK)?;
    let words = zeroed(FAR, Counts::words(room.lines, room.probes), 0)?;
    let places: &'static [Place] = zeroed(0, PLACES, 0)?;
    let engine = Engine::new(Memory { lines, words, places }, room.probes)?;
    Some(match rseq() {
        // SAFETY: what the C library says of all its threads.
        Some(offset) => unsafe { engine.with_rseq(offset) },
        None => engine,
    })
}

/// Whether this process has one thread: its folder of threads has as many links as there are, and two.
fn is_alone() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/task").is_ok_and(|folder| folder.nlink() == 3)
}

/// Hints at slots, and quick ones.
pub(super) fn hints() -> Option<(&'static [Hint], &'static [AtomicU32])> {
    Some((zeroed(0, HINTS, 0)?, zeroed(0, QUICK, 0)?))
}

/// Room for all probes; null: there is none.
fn probes() -> *mut MaybeUninit<Probe> {
    static ROOM: OnceLock<AtomicPtr<MaybeUninit<Probe>>> = OnceLock::new();
    let make = || {
        let room = mapped(PROBES_AT, room().probes * size_of::<Probe>(), 0);
        AtomicPtr::new(room.unwrap_or(std::ptr::null_mut()).cast())
    };
    ROOM.get_or_init(make).load(Relaxed)
}

/// Makes a probe where it stays, beside those of other numbers. For the one who holds the engine's lock; once for each number.
pub(super) fn make_probe(
    engine: &'static Engine,
    number: u32,
    file: FileId,
    offset: FileOffset,
) -> &'static Probe {
    let (room, place) = (probes(), number as usize);
    if room.is_null() || place >= super::arch::room().probes {
        return Box::leak(Box::new(Probe::new(engine, number, file, offset)));
    }
    // SAFETY: room for so many, page-aligned, never unmapped; each number comes once, so nobody else has this place.
    let place = unsafe { &mut *room.add(place) };
    // Made there: one that was made elsewhere and copied would have to be whole before, behind all that waits for memory.
    place.write(Probe::new(engine, number, file, offset))
}

/// Before a batch of so many sites. What planning it takes, and gives back, is a dozen blocks of up to [`PASSING`] bytes a site. glibc maps a block of such a size by
/// itself, of pages that the kernel must clear, until one of that size was given back once; then it takes them from what it has. So that is done first, with
/// one that nobody touches. (It keeps as much free memory as two of them from then on.) Other C libraries: nothing.
pub(super) fn keep_blocks(sites: usize) {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    if let Some(len) = block(sites).filter(|&len| len > KEPT.fetch_max(len, Relaxed)) {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(len)));
    }
}

/// Behind [`keep_blocks`], by one who may have to wait for another thread (`early`): what the batch takes comes in large pages, where the kernel gives them, those of probes
/// from number `first` on too; and until `is_over` it is had at once. Either takes a fraction of what faults take, one for each page, in the midst of the batch. While the answer
/// lives, glibc gives none of it back.
pub(super) fn make_room(sites: usize, first: usize, mut is_over: impl FnMut() -> bool) -> Option<Fence> {
    /// As many at a time; a large page, mostly.
    const STEP: usize = 2 << 20;
    /// Bytes a site of what is taken before its probe.
    const BEFORE: usize = 256;
    let len = block(sites)?;
    let rooms = [len; BLOCKS].map(Vec::<u8>::with_capacity);
    let fence = Fence(std::hint::black_box(Vec::with_capacity(FENCE)));
    let mut all: Vec<(*mut u8, usize)> = stretches(&rooms).collect();
    let (probes, most) = (probes(), room().probes);
    if !probes.is_null() && first < most {
        // In the order in which they are taken: of blocks what lies lowest first.
        let before = all.first_mut().map(|(at, len)| {
            let before = (*at, (sites * BEFORE).min(*len));
            (*at, *len) = (at.wrapping_add(before.1), *len - before.1);
            before
        });
        let its = (probes.wrapping_add(first).cast(), sites.min(most - first) * size_of::<Probe>());
        all.splice(0..0, before.into_iter().chain([its]));
    }
    all.iter().for_each(|&(at, len)| advise(at, len, libc::MADV_HUGEPAGE));
    for (at, len) in all {
        let steps = (0..len).step_by(STEP).take_while(|_| !is_over());
        steps.for_each(|from| advise(at.wrapping_add(from), STEP.min(len - from), libc::MADV_POPULATE_WRITE));
    }
    drop(std::hint::black_box(rooms));
    Some(fence)
}

/// The same for a thread with memory of its own (glibc's arenas, of at most 64 MiB), which has no time to wait: its pages come when they are touched, large ones.
pub(super) fn make_own_room(sites: usize) {
    let Some(len) = block(sites) else { return };
    let rooms = [len - PAGE, len.saturating_sub(2 << 20)].map(Vec::<u8>::with_capacity);
    stretches(&rooms).for_each(|(at, len)| advise(at, len, libc::MADV_HUGEPAGE));
    drop(std::hint::black_box(rooms));
}

/// Where blocks lie; those that follow each other are one, so that a large page may reach over their border.
fn stretches(rooms: &[Vec<u8>]) -> impl Iterator<Item = (*mut u8, usize)> {
    let mut all: Vec<(*mut u8, usize)> = Vec::with_capacity(rooms.len());
    for (at, len) in rooms.iter().map(|room| (room.as_ptr().cast_mut(), room.capacity())) {
        match all.last_mut() {
            Some(last) if at.addr().wrapping_sub(last.0.addr() + last.1) < PAGE => {
                last.1 = at.addr() + len - last.0.addr()
            }
            _ => all.push((at, len)),
        }
    }
    all.into_iter()
}

/// Bytes of the blocks of a large batch.
fn block(sites: usize) -> Option<usize> {
    /// The largest block that glibc comes to keep is 32 MiB.
    const MOST: usize = 31 << 20;
    (sites >= 1000).then(|| (sites * PASSING).min(MOST))
}

/// Has the kernel do that with the pages of this memory, with what others have at both ends of them: have them come as large ones ([`libc::MADV_HUGEPAGE`]), or come now
/// ([`libc::MADV_POPULATE_WRITE`], Linux 5.14). If it does not, each comes when it is touched.
fn advise(at: *mut u8, len: usize, what: i32) {
    let before = at.addr() % PAGE;
    let whole = (before + len).next_multiple_of(PAGE);
    // SAFETY: neither changes a byte or unmaps anything; outside of mappings it fails.
    unsafe { libc::madvise(at.wrapping_sub(before).cast(), whole, what) };
}

const PAGE: usize = 4096;

/// A block at the end of glibc's heap, which keeps it from giving back what is free before that.
#[derive(Debug)]
pub(super) struct Fence(#[expect(dead_code, reason = "it is there")] Vec<u8>);
/// Its length: less would be taken from among small blocks.
const FENCE: usize = 256 << 10;
/// Blocks that a large batch takes and gives back in all, about.
const BLOCKS: usize = 3;

/// The planner's own site is the largest, of 352; two such blocks are about what there is at a time.
const PASSING: usize = 640;

/// Where the C library registers its threads' rseq areas, from the thread pointer (glibc 2.35).
fn rseq() -> Option<isize> {
    // SAFETY: names of the C library's own constants, an `isize` and a `u32`, if it has them.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        (!offset.is_null() && !size.is_null() && *size > 0).then(|| *offset)
    }
}

/// A slot for each mapping of code.
pub(super) fn slots() -> Option<&'static [Slot]> {
    zeroed(0, REGIONS, 0)
}

/// # Safety
/// All-zero bytes are a value of it, and it has no destructor that matters.
unsafe trait Zeroed: Sync {}
// SAFETY: three words, of which 0 means free and outside.
unsafe impl Zeroed for Line {}
// SAFETY: words; a sequence of 0 was never used.
unsafe impl Zeroed for Slot {}
// SAFETY: a word; 0 says nothing.
unsafe impl Zeroed for Hint {}
// SAFETY: four words, of which 0 means nobody's, and none.
unsafe impl Zeroed for Place {}
// SAFETY: a word.
unsafe impl Zeroed for std::sync::atomic::AtomicU64 {}
// SAFETY: a word.
unsafe impl Zeroed for AtomicU32 {}

/// At `near`, if that is free; 0: anywhere.
fn zeroed<T: Zeroed>(near: usize, count: usize, advice: i32) -> Option<&'static [T]> {
    let at = mapped(near, count * size_of::<T>(), advice)?;
    // SAFETY: so many bytes, page-aligned, never unmapped, zeroed; `T` may be that.
    Some(unsafe { std::slice::from_raw_parts(at.cast(), count) })
}

/// New pages, which read as zeros; the mapping stays.
fn mapped(near: usize, len: usize, advice: i32) -> Option<*mut c_void> {
    let len = len.next_multiple_of(PAGE);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let near = std::ptr::without_provenance_mut(near);
    // SAFETY: a new mapping at an address that is free, and advice about it.
    unsafe {
        let at = libc::mmap(near, len, prot, flags, -1, 0);
        (at != libc::MAP_FAILED && (advice == 0 || libc::madvise(at, len, advice) == 0)).then_some(at)
    }
}
