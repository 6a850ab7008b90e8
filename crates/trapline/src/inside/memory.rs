//! The engine's memory, mapped once and for good.
//!
//! In: nothing. Out: an [`Engine`] that lives as long as the process. Pages that nobody writes to take no memory. Lines are wiped in a
//! forked child, whose threads are others.
#![allow(
    unsafe_code,
    reason = "anonymous mappings made into slices of atomics: zeroed, shared with nobody, never unmapped"
)]

use std::sync::OnceLock;

use trapline_runtime::calls::Call;
use trapline_runtime::engine::{Counts, Engine, Memory};
use trapline_runtime::epoch::{Line, Writer};
use trapline_runtime::x86_64::thread::{membarrier, register_membarrier};

/// Threads that can be told apart; further ones' hits count as missed.
const LINES: usize = 4096;
/// Probes at most.
pub(super) const PROBES: usize = 1 << 17;
/// Calls in flight whose return somebody waits for.
const CALLS: usize = 1 << 16;

/// The engine of this process.
pub(super) fn engine() -> Option<&'static Engine> {
    static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
    ENGINE.get_or_init(make).as_ref()
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
    let lines: &'static [Line] = zeroed(LINES, libc::MADV_WIPEONFORK)?;
    let words = zeroed(Counts::words(LINES, PROBES), 0)?;
    let calls: &'static [Call] = zeroed(CALLS, 0)?;
    Engine::new(Memory { lines, words, calls }, PROBES)
}

/// # Safety
/// All-zero bytes are a value of it, and it has no destructor that matters.
unsafe trait Zeroed: Sync {}
// SAFETY: three words, of which 0 means free and outside.
unsafe impl Zeroed for Line {}
// SAFETY: words, of which the first is 0 when it is free.
unsafe impl Zeroed for Call {}
// SAFETY: a word.
unsafe impl Zeroed for std::sync::atomic::AtomicU64 {}

fn zeroed<T: Zeroed>(count: usize, advice: i32) -> Option<&'static [T]> {
    let len = (count * size_of::<T>()).next_multiple_of(4096);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, page-aligned, never unmapped, zeroed; `T` may be that.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0);
        if at == libc::MAP_FAILED || (advice != 0 && libc::madvise(at, len, advice) != 0) {
            return None;
        }
        Some(std::slice::from_raw_parts(at.cast(), count))
    }
}
