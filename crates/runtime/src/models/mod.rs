//! The protocols of this crate in every interleaving that loom finds, in its memory model.
//!
//! Each model runs the crate's own code. Beside it are twins in which one step is left out or moved; a twin
//! must fail, or the model proves nothing. loom's cells represent memory that is freed: loom reports a read
//! and a free that nothing orders. Run by `cargo xtask loom`.
//! Does not: model signals in a thread, `membarrier` (see `sync`), or generated code.

mod consumers;
mod epoch;
mod instances;
mod kept_places;
mod regions;
mod table;
mod trampolines;

use std::boxed::Box;
use std::vec::Vec;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{Ordering, fence};
use trapline_record::trampolines::Trampolines;

use crate::epoch::{Barrier, Grace, Inside, Line, Lines, Seal, ThreadPointer, Writer};
use crate::probe::Probe;
use crate::registry::{FileSite, Registry};
use crate::trampolines::table::{ReturnedCall, TakenTrampoline, TrampolineTable};

/// Used in place of `membarrier`.
fn barrier() -> bool {
    fence(Ordering::SeqCst);
    true
}

/// Thread pointers of the models' threads.
const READER: ThreadPointer = ThreadPointer(0x1000);
const OTHER: ThreadPointer = ThreadPointer(0x2000);

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect::<Vec<_>>().into_boxed_slice())
}

fn lines() -> Lines {
    Lines::new(leaked::<Line>(2))
}

fn writer(lines: Lines, barrier: Barrier) -> Writer {
    // SAFETY: each model has one writer, and its readers enter these lines. In a twin with a barrier that
    // does nothing, loom must find the error.
    unsafe { Writer::new(lines, barrier) }
}

fn inside<T>(lines: &Lines, thread: ThreadPointer, f: impl FnOnce(&Inside<'_>) -> T) -> T {
    let seal = Seal::new();
    let (_, line) = lines.of(thread).expect("a line for each");
    f(&line.enter(&seal))
}

/// Puts a probe that is never freed at a site.
fn put(registry: &Registry, writer: &mut Writer, site: FileSite, probe: &'static Probe) {
    // SAFETY: it is neither moved nor freed.
    unsafe { registry.put(writer, site, std::ptr::NonNull::from(probe)) };
}

/// A table of return trampolines with one line of hints, and one quick hint.
fn trampoline_table(trampolines: Trampolines) -> &'static TrampolineTable {
    // SAFETY: a model's words are its own; probes are leaked.
    let table = unsafe { TrampolineTable::new(trampolines, leaked(8), leaked(2)) };
    Box::leak(Box::new(table.expect("sizes fit")))
}

/// A1 to A4, for a call of this thread with this (stack word, return address).
fn take(table: &'static TrampolineTable, at: (u64, u64), probe: &Probe) -> Option<TakenTrampoline> {
    // SAFETY: it is a word of this thread.
    unsafe { table.take(at, 0, probe.address()) }
}

/// B2, for a call with this trampoline's address in its word.
fn returned(table: &TrampolineTable, number: u32) -> ReturnedCall {
    // SAFETY: the thread is the one that returns there.
    unsafe { table.returned(number) }.expect("a return trampoline")
}

/// The quick hint that a hash selects, as assembly code reads it.
fn quick_hint(table: &TrampolineTable, hash: u64) -> u32 {
    let quick = table.raw.quick.load(Ordering::Acquire);
    // SAFETY: at most the last hint (`TrampolineTable::new`).
    unsafe { &*quick.add((hash & table.raw.quick_mask) as usize / 4) }.load(Ordering::Acquire)
}

/// Polls until all noted hits are over.
fn wait(mut grace: Grace, lines: &Lines) {
    while !grace.poll(lines) {
        loom::thread::yield_now();
    }
}

/// An object that is written once, read by threads inside, and freed once.
struct Thing(UnsafeCell<u64>);

// SAFETY: the models check that accesses are ordered.
unsafe impl Sync for Thing {}
// SAFETY: as above.
unsafe impl Send for Thing {}

impl Thing {
    fn leak(value: u64) -> &'static Self {
        Box::leak(Box::new(Self(UnsafeCell::new(value))))
    }
    fn address(&'static self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
    fn at(address: u64) -> &'static Self {
        // SAFETY: leaked by `leak`.
        unsafe { &*(address as *const Self) }
    }
    /// Loom panics if a free is not ordered before or after the read.
    fn read(&self) -> u64 {
        // SAFETY: loom reports a concurrent write.
        self.0.with(|value| unsafe { *value })
    }
    fn free(&self) {
        // SAFETY: loom reports a concurrent read.
        self.0.with_mut(|value| unsafe { *value = FREED });
    }
}

const FREED: u64 = 0xdead;

/// Runs a model with at most so many preemptions (all interleavings for `None`).
fn model(bound: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(run);
}
