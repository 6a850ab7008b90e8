//! The engine's memory, mapped once and for good.
//!
//! In: nothing. Out: an [`Engine`] that lives as long as the process. Pages that are never written to take no
//! memory. Lines are wiped in a forked child, since its threads are different ones.
#![allow(
    unsafe_code,
    reason = "anonymous mappings made into slices of atomics: zeroed, shared with no other process, never unmapped"
)]

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use trapline_record::{FileId, FileOffset};
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::{Line, Writer};
use trapline_runtime::instances::{Hint, KeptPlace};
use trapline_runtime::native::thread::{membarrier, register_core_sync, register_membarrier};
use trapline_runtime::probe::Probe;
use trapline_runtime::regions::MappingEntry;

use super::arch::room;
use super::capacity::{HINTS, PLACES, QUICK, REGIONS};

/// Address at which the counts are requested: terabytes away from programs and libraries. The kernel would
/// put these gigabytes right below the libraries, where jumps look for room.
const FAR: usize = 0x2000_0000_0000;
/// The same for probes.
const PROBES_AT: usize = 0x1000_0000_0000;

static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();

/// Engine of this process, made if there is none yet. For the holder of the engine's lock. A fork waits for
/// that lock, so no child finds the engine half made, and waits for a thread that it does not have.
pub(super) fn engine() -> Option<&'static Engine> {
    ENGINE.get_or_init(make).as_ref()
}

/// The same for any thread, if there is an engine.
pub(super) fn made() -> Option<&'static Engine> {
    ENGINE.get()?.as_ref()
}

/// The engine's only writer; for the holder of the engine's lock, once.
pub(super) fn writer(engine: &'static Engine) -> Writer {
    // SAFETY: only `Registry` asks for it, of which there is one. Stubs and consumers' lists use this engine's
    // lines. `make` registered for the membarrier.
    unsafe { Writer::new(*engine.lines(), membarrier) }
}

fn make() -> Option<Engine> {
    if !register_membarrier() {
        return None;
    }
    if is_alone() {
        // Registered now, as it is fast with one thread: with others about, the kernel waits until each CPU
        // was seen elsewhere. If it is refused, the first write reports that.
        register_core_sync();
    }
    let room = room();
    let lines: &'static [Line] = zeroed(0, room.lines, libc::MADV_WIPEONFORK)?;
    let words = zeroed(FAR, Counts::words(room.lines, room.probes), 0)?;
    let places: &'static [KeptPlace] = zeroed(0, PLACES, 0)?;
    let engine = Engine::new(Memory { lines, words, places }, room.probes)?;
    Some(match rseq() {
        // SAFETY: the C library states this offset for all its threads.
        Some(offset) => unsafe { engine.with_rseq(offset) },
        None => engine,
    })
}

/// Whether this process has one thread: /proc/self/task has two links more than there are threads.
fn is_alone() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self/task").is_ok_and(|folder| folder.nlink() == 3)
}

/// Hints at return trampolines, and quick hints.
pub(super) fn hints() -> Option<(&'static [Hint], &'static [AtomicU32])> {
    Some((zeroed(0, HINTS, 0)?, zeroed(0, QUICK, 0)?))
}

/// Memory for all probes; null if it could not be mapped.
fn probes() -> *mut MaybeUninit<Probe> {
    static ROOM: OnceLock<AtomicPtr<MaybeUninit<Probe>>> = OnceLock::new();
    let make = || {
        let room = mapped(PROBES_AT, room().probes * size_of::<Probe>(), 0);
        AtomicPtr::new(room.unwrap_or(std::ptr::null_mut()).cast())
    };
    ROOM.get_or_init(make).load(Relaxed)
}

/// Makes a probe in its final place, beside those of other numbers. For the holder of the engine's lock; once
/// for each number.
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
    // SAFETY: the memory has room for so many probes, is page-aligned, and is never unmapped. Each number is
    // used once, so nothing else refers to this place.
    let place = unsafe { &mut *room.add(place) };
    // Constructed in place: one that was made elsewhere and copied would have to be whole before, after all
    // that waits for memory.
    place.write(Probe::new(engine, number, file, offset))
}

/// Called before a batch of so many sites. Planning the batch allocates and frees a dozen blocks of up to
/// [`PASSING`] bytes a site. glibc maps a block of such a size separately, from pages that the kernel must
/// clear, until one of that size has been freed once. Then it takes such blocks from its heap. So this frees
/// one such block first, which was never written to. (From then on, glibc keeps as much free memory as two of
/// them.) With other C libraries this has no effect.
pub(super) fn keep_blocks(sites: usize) {
    static KEPT: AtomicUsize = AtomicUsize::new(0);
    if let Some(len) = block(sites).filter(|&len| len > KEPT.fetch_max(len, Relaxed)) {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(len)));
    }
}

/// Called after [`keep_blocks`], by a thread that may have to wait for another one (`speculate`). The memory
/// that the batch takes then comes in large pages, if the kernel gives them; so does that of probes from number
/// `first` on. Until `is_over` is true, pages are also populated at once. Either takes a fraction of the time
/// that page faults in the midst of the batch would take. While the result lives, glibc gives none of it
/// back.
pub(super) fn make_room(sites: usize, first: usize, mut is_over: impl FnMut() -> bool) -> Option<Fence> {
    /// Bytes populated at a time; mostly one large page.
    const STEP: usize = 2 << 20;
    /// Bytes a site that are taken before its probe.
    const BEFORE: usize = 256;
    let len = block(sites)?;
    let rooms = [len; BLOCKS].map(Vec::<u8>::with_capacity);
    let fence = Fence(std::hint::black_box(Vec::with_capacity(FENCE)));
    let mut all: Vec<(*mut u8, usize)> = stretches(&rooms).collect();
    let (probes, most) = (probes(), room().probes);
    if !probes.is_null() && first < most {
        // In the order in which memory is taken: of blocks, the lowest part first.
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

/// The same for a thread with memory of its own (glibc's arenas, of at most 64 MiB) that has no time to wait.
/// Its pages come when they are touched, as large ones.
pub(super) fn make_own_room(sites: usize) {
    let Some(len) = block(sites) else { return };
    let rooms = [len - PAGE, len.saturating_sub(2 << 20)].map(Vec::<u8>::with_capacity);
    stretches(&rooms).for_each(|(at, len)| advise(at, len, libc::MADV_HUGEPAGE));
    drop(std::hint::black_box(rooms));
}

/// Ranges of the blocks. Adjacent blocks become one range, so that a large page may cross their border.
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

/// Size of the blocks of a large batch, in bytes.
fn block(sites: usize) -> Option<usize> {
    /// The largest block that glibc comes to keep is 32 MiB.
    const MOST: usize = 31 << 20;
    (sites >= 1000).then(|| (sites * PASSING).min(MOST))
}

/// Advises the kernel about the pages of this memory, including whole pages at both ends that others share.
/// The advice is to use large pages ([`libc::MADV_HUGEPAGE`]), or to populate them now
/// ([`libc::MADV_POPULATE_WRITE`], Linux 5.14). If the kernel does not follow it, each page comes when it is
/// touched.
fn advise(at: *mut u8, len: usize, what: i32) {
    let before = at.addr() % PAGE;
    let whole = (before + len).next_multiple_of(PAGE);
    // SAFETY: neither advice changes a byte or unmaps anything; outside of mappings the call fails.
    unsafe { libc::madvise(at.wrapping_sub(before).cast(), whole, what) };
}

const PAGE: usize = 4096;

/// A block at the end of glibc's heap. It keeps glibc from giving back the free memory before it.
#[derive(Debug)]
pub(super) struct Fence(#[expect(dead_code, reason = "it is there")] Vec<u8>);
/// Its length in bytes; a shorter one would be taken from among small blocks.
const FENCE: usize = 256 << 10;
/// About how many such blocks a large batch takes and gives back in all.
const BLOCKS: usize = 3;

/// Bytes a site in such a block. The largest are the planner's own sites, of 352 bytes each; about two such
/// blocks exist at a time.
const PASSING: usize = 640;

/// Offset of threads' rseq areas from the thread pointer, if the C library registers them (glibc 2.35).
fn rseq() -> Option<isize> {
    // SAFETY: these are names of the C library's own constants, an `isize` and a `u32`, if it has them.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>();
        (!offset.is_null() && !size.is_null() && *size > 0).then(|| *offset)
    }
}

/// An entry for each mapping of code.
pub(super) fn mapping_entries() -> Option<&'static [MappingEntry]> {
    zeroed(0, REGIONS, 0)
}

/// A word that leads to a value that stays for good, or to none yet.
#[derive(Debug)]
pub(super) struct Leaked<T: 'static>(AtomicPtr<T>);

impl<T: Sync> Leaked<T> {
    pub(super) const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }
    /// The value that was set last.
    pub(super) fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or what `set` was given. Acquire makes its contents visible.
        unsafe { self.0.load(Acquire).as_ref() }
    }
    pub(super) fn set(&self, value: &'static T) {
        self.0.store(std::ptr::from_ref(value).cast_mut(), Release);
    }
}

/// Types that zeroed memory may hold.
///
/// # Safety
/// All-zero bytes are a valid value, and it has no destructor that matters.
unsafe trait Zeroed: Sync {}
// SAFETY: three words, of which 0 means free and outside.
unsafe impl Zeroed for Line {}
// SAFETY: words; a sequence of 0 means never used.
unsafe impl Zeroed for MappingEntry {}
// SAFETY: a word, of which 0 means no hint.
unsafe impl Zeroed for Hint {}
// SAFETY: four words, of which 0 means unbound and empty.
unsafe impl Zeroed for KeptPlace {}
// SAFETY: a word.
unsafe impl Zeroed for std::sync::atomic::AtomicU64 {}
// SAFETY: a word.
unsafe impl Zeroed for AtomicU32 {}

/// Maps zeroed memory, at `near` if that is free; 0 means anywhere.
fn zeroed<T: Zeroed>(near: usize, count: usize, advice: i32) -> Option<&'static [T]> {
    let at = mapped(near, count * size_of::<T>(), advice)?;
    // SAFETY: the mapping has so many bytes, is page-aligned, zeroed, and never unmapped; `Zeroed` allows for
    // that value.
    Some(unsafe { std::slice::from_raw_parts(at.cast(), count) })
}

/// Maps new pages, which read as zeros; the mapping stays for good.
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
