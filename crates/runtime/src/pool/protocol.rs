//! Taking, putting and closing, on parts that are real memory or a model's. [`pool`](super) lists the steps.
//!
//! In: the parts of a pool, and where the caller runs. Out: object numbers. Invariants: POOL-1 to POOL-6.
//! Does not: know how a sequence is run.

use core::fmt;

use super::magazine::Magazine;
use super::set;
use super::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed};

/// The words of a pool, and how sequences are run on them.
pub trait Parts {
    /// The place where a caller runs.
    type At: Copy;
    /// Number of CPUs with a magazine and a bitmap.
    fn cpus(&self) -> u32;
    /// A CPU's magazine.
    fn magazine(&self, cpu: u32) -> &Magazine;
    /// A CPU's free bitmap.
    fn set(&self, cpu: u32) -> &[AtomicU64];
    /// Number of objects that are not dropped, and 1 until closed.
    fn refs(&self) -> &AtomicU32;
    /// 0, or 1 once a thread closes the pool.
    fn closing(&self) -> &AtomicU32;
    /// Number of objects that a magazine can hold.
    fn depth(&self) -> u32;
    /// G1 and G2 as one sequence: an object, or the CPU with the bitmap to be tried next.
    fn take_from_magazine(&self, at: Self::At) -> Result<u32, u32>;
    /// P1 and P2 as one sequence: done, or the CPU with the bitmap to be used next.
    fn put_into_magazine(&self, at: Self::At, object: u32) -> Result<(), u32>;
}

/// What has happened to an object that was put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the last one to be dropped releases the pool"]
pub enum Returned {
    /// It is free again.
    Free,
    /// The pool is closed; others are still held.
    Dropped,
    /// The pool is closed, and nothing refers to it any more: the caller has to release its memory.
    Last,
}

/// Why a pool was not closed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotClosed {
    /// Sequences in progress could not be restarted (membarrier(2) refused).
    NoRestart,
    /// It is closed already.
    Already,
}

impl fmt::Display for NotClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRestart => "the kernel does not restart sequences (membarrier PRIVATE_EXPEDITED_RSEQ)",
            Self::Already => "the pool is closed already",
        })
    }
}

impl core::error::Error for NotClosed {}

/// G1 to G5.
#[inline]
pub fn get<P: Parts>(parts: &P, at: P::At) -> Option<u32> {
    match parts.take_from_magazine(at) {
        Ok(object) => Some(object),
        Err(cpu) => take_from_sets(parts, cpu),
    }
}

/// G3 to G5.
#[inline(never)]
fn take_from_sets<P: Parts>(parts: &P, own: u32) -> Option<u32> {
    if let Some(object) = set::take(parts.set(own)) {
        return Some(object);
    }
    let others = (own + 1..parts.cpus()).chain(0..own);
    others.into_iter().find_map(|cpu| set::take(parts.set(cpu)))
}

/// P1 to P4.
#[inline]
pub fn put<P: Parts>(parts: &P, at: P::At, object: u32) -> Returned {
    match parts.put_into_magazine(at, object) {
        Ok(()) => Returned::Free,
        Err(cpu) => put_into_set(parts, cpu, object),
    }
}

/// P3 and P4.
#[inline(never)]
fn put_into_set<P: Parts>(parts: &P, cpu: u32, object: u32) -> Returned {
    if set::put(parts.set(cpu), object) { Returned::Free } else { leave(parts, 1) }
}

/// P4, C5. After the subtraction the pool may be gone.
fn leave<P: Parts>(parts: &P, refs: u32) -> Returned {
    if parts.refs().fetch_sub(refs, AcqRel) == refs { Returned::Last } else { Returned::Dropped }
}

/// C1 to C5. `Last` means that no object was held.
///
/// # Errors
/// [`NotClosed`]; nothing has changed then.
pub fn close<P: Parts>(parts: &P, restart: impl FnOnce() -> bool) -> Result<Returned, NotClosed> {
    if parts.closing().compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        return Err(NotClosed::Already);
    }
    let magazines = || (0..parts.cpus()).map(|cpu| parts.magazine(cpu));
    magazines().for_each(Magazine::shut);
    if parts.depth() > 0 && !restart() {
        magazines().for_each(|magazine| magazine.reopen(parts.depth()));
        parts.closing().store(0, super::sync::Release);
        return Err(NotClosed::NoRestart);
    }
    let in_magazines: u32 = magazines().map(Magazine::empty).sum();
    let in_sets: u32 = (0..parts.cpus()).map(|cpu| set::close(parts.set(cpu))).sum();
    Ok(leave(parts, in_magazines + in_sets + 1))
}
