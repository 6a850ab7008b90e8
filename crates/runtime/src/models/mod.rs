//! The protocols of this crate in every interleaving that loom finds, in its memory model.
//!
//! Each model runs the crate's own code and stands beside twins in which one step is left out or moved; a twin must fail, or the model
//! shows nothing. What is freed, and who may still read it, is said to loom by cells: it finds a read and a free that nothing orders.
//! Run by `cargo xtask loom`. Does not: model signals on a thread, `membarrier` (see `sync`), or generated code.

mod consumers;
mod epoch;
mod instances;
mod places;
mod regions;
mod slots;
mod table;

use std::boxed::Box;
use std::vec::Vec;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{Ordering, fence};

use crate::epoch::{Barrier, Grace, Inside, Line, Lines, Seal, ThreadPointer, Writer};

/// The stand-in for `membarrier`.
fn barrier() -> bool {
    fence(Ordering::SeqCst);
    true
}

/// Threads' names: their lines.
const READER: ThreadPointer = ThreadPointer(0x1000);
const OTHER: ThreadPointer = ThreadPointer(0x2000);

fn leaked<T: Default>(n: usize) -> &'static [T] {
    Box::leak((0..n).map(|_| T::default()).collect::<Vec<_>>().into_boxed_slice())
}

fn lines() -> Lines {
    Lines::new(leaked::<Line>(2))
}

fn writer(lines: Lines, barrier: Barrier) -> Writer {
    // SAFETY: each model has one writer, and its readers enter these lines. A twin's barrier does nothing: it must be caught.
    unsafe { Writer::new(lines, barrier) }
}

fn inside<T>(lines: &Lines, thread: ThreadPointer, f: impl FnOnce(&Inside<'_>) -> T) -> T {
    let seal = Seal::new();
    let (_, line) = lines.of(thread).expect("a line for each");
    f(&line.enter(&seal))
}

/// Polls until all have gone on.
fn wait(mut grace: Grace, lines: &Lines) {
    while !grace.poll(lines) {
        loom::thread::yield_now();
    }
}

/// Something that is written once, read by those inside, and freed once.
struct Thing(UnsafeCell<u64>);

// SAFETY: that accesses are ordered is what the models check.
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
    /// Loom panics if a free is not ordered before or after.
    fn read(&self) -> u64 {
        // SAFETY: loom says whether somebody writes.
        self.0.with(|value| unsafe { *value })
    }
    fn free(&self) {
        // SAFETY: loom says whether somebody reads.
        self.0.with_mut(|value| unsafe { *value = FREED });
    }
}

const FREED: u64 = 0xdead;

/// Runs a model with at most so many preemptions (all interleavings if `None`).
fn model(bound: Option<usize>, run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(run);
}
