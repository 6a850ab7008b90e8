//! A lock of many lanes: an operation on a task is in one of them, an operation on a CPU has closed them all.
//!
//! Each lane lies on cache lines of its own, with its part of the histogram `spread`. [`constraints`](super)
//! describes the protocol.

use std::sync::atomic::Ordering::Relaxed;

use super::rule::{Move, POOLS};
use super::sync::{AtomicU32, Patience, RwLock, RwLockReadGuard, RwLockWriteGuard};
use super::words::MAX_REGISTERS;

/// Number of tasks by how many debug registers they pin, from 1 up; one cache line. The parts of a sum may
/// wrap.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Histogram([AtomicU32; MAX_REGISTERS as usize]);

impl Histogram {
    /// Relaxed: lanes order these additions before any use.
    pub(super) fn make(&self, step: Move) {
        let at = |count: u8| self.0.get(usize::from(count).wrapping_sub(1));
        if let Some(old) = at(step.from) {
            old.fetch_sub(1, Relaxed);
        }
        if let Some(new) = at(step.to) {
            new.fetch_add(1, Relaxed);
        }
    }
    /// The largest count of any task, found in the sum of the parts.
    pub(super) fn top<'a>(parts: impl Iterator<Item = &'a Self> + Clone) -> u32 {
        let tasks = |at: usize| {
            parts
                .clone()
                .fold(0u32, |sum, part| sum.wrapping_add(part.0.get(at).map_or(0, |n| n.load(Relaxed))))
        };
        (0..usize::from(MAX_REGISTERS)).rev().find(|&at| tasks(at) != 0).map_or(0, |at| at as u32 + 1)
    }
}

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Lane {
    gate: RwLock<()>,
    pub(super) spread: [Histogram; POOLS],
}

#[derive(Debug)]
pub(super) struct Lanes(Box<[Lane]>);

/// A lane that is entered. Other operations may be in it too.
#[derive(Debug)]
pub(super) struct InLane<'a> {
    lane: &'a Lane,
    _gate: RwLockReadGuard<'a, ()>,
}

/// All lanes, closed: no other operation is in any.
#[derive(Debug)]
pub(super) struct Closed<'a> {
    lanes: &'a [Lane],
    _gates: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Lanes {
    /// Makes one lane for each CPU, rounded up to a power of two, so that a mask gives a thread's lane.
    pub(super) fn new(cpus: u32) -> Self {
        let lane = |_| Lane { gate: RwLock::new(()), spread: Default::default() };
        Self((0..cpus.next_power_of_two()).map(lane).collect())
    }
    /// Enters this thread's lane.
    pub(super) fn enter(&self, patience: Patience) -> Option<InLane<'_>> {
        let lane = &self.0[own_lane() & (self.0.len() - 1)];
        Some(InLane { lane, _gate: patience.read(&lane.gate)? })
    }
    /// Closes all lanes, in order.
    pub(super) fn close(&self, patience: Patience) -> Option<Closed<'_>> {
        let gates: Option<Vec<_>> = self.0.iter().map(|lane| patience.write(&lane.gate)).collect();
        Some(Closed { lanes: &self.0, _gates: gates? })
    }
}

impl InLane<'_> {
    /// Makes a move in this lane's part of `spread`.
    pub(super) fn spread(&self, step: Move) {
        self.lane.spread[step.pool].make(step);
    }
}

impl Closed<'_> {
    /// The most debug registers that any task pins on every CPU.
    pub(super) fn top_spread(&self, pool: usize) -> u32 {
        Histogram::top(self.lanes.iter().map(move |lane| &lane.spread[pool]))
    }
}

#[cfg(not(loom))]
fn own_lane() -> usize {
    use std::cell::Cell;
    use std::sync::atomic::AtomicUsize;
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN_LANE: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN_LANE.with(|own_lane| {
        own_lane.get().unwrap_or_else(|| {
            let number = THREADS.fetch_add(1, Relaxed);
            own_lane.set(Some(number));
            number
        })
    })
}

#[cfg(loom)]
loom::thread_local! {
    static OWN_LANE: std::cell::Cell<usize> = std::cell::Cell::new(0);
}

#[cfg(loom)]
fn own_lane() -> usize {
    OWN_LANE.with(std::cell::Cell::get)
}

/// Sets the lane that this thread takes, in a model.
#[cfg(loom)]
pub fn set_lane(lane: usize) {
    OWN_LANE.with(|own_lane| own_lane.set(lane));
}
