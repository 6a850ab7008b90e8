//! A lock of many lanes: whoever changes a task is in one of them, whoever changes a CPU has closed them all.
//!
//! Each lane lies on cache lines of its own, with its part of the histogram `spread`. A thread with a number of its own has
//! a lane of its own, where it counts with plain stores; the others share lanes and count with atomic additions. The
//! protocol stands in [`constraints`](super).

use std::sync::atomic::Ordering::Relaxed;

use super::Patience;
use super::rule::{Move, POOLS};
use super::sync::{AtomicU32, RwLock, RwLockReadGuard, RwLockWriteGuard};
use super::words::MAX_SLOTS;

/// Tasks by what they pin, from 1 slot up; one cache line. Parts of a sum may wrap.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Histogram([AtomicU32; MAX_SLOTS as usize]);

impl Histogram {
    /// A move beside others' moves. Relaxed: lanes order them before any use.
    pub(super) fn make(&self, step: Move) {
        if let Some(old) = self.at(step.from) {
            old.fetch_sub(1, Relaxed);
        }
        if let Some(new) = self.at(step.to) {
            new.fetch_add(1, Relaxed);
        }
    }
    /// A move where nobody else makes any: plain loads and stores.
    fn make_alone(&self, step: Move) {
        if let Some(old) = self.at(step.from) {
            old.store(old.load(Relaxed).wrapping_sub(1), Relaxed);
        }
        if let Some(new) = self.at(step.to) {
            new.store(new.load(Relaxed).wrapping_add(1), Relaxed);
        }
    }
    fn at(&self, count: u8) -> Option<&AtomicU32> {
        self.0.get(usize::from(count).wrapping_sub(1))
    }
    /// The largest count that any task has, by the sum of the parts.
    pub(super) fn top<'a>(parts: impl Iterator<Item = &'a Self> + Clone) -> u32 {
        let tasks = |at: usize| {
            parts
                .clone()
                .fold(0u32, |sum, part| sum.wrapping_add(part.0.get(at).map_or(0, |n| n.load(Relaxed))))
        };
        (0..usize::from(MAX_SLOTS)).rev().find(|&at| tasks(at) != 0).map_or(0, |at| at as u32 + 1)
    }
}

#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Lane {
    gate: RwLock<()>,
    pub(super) spread: [Histogram; POOLS],
}

#[derive(Debug)]
pub(super) struct Lanes {
    /// First the own ones, by thread number; then the shared ones.
    all: Box<[Lane]>,
    own: usize,
}

/// In a lane. Others may be in it too, unless it is this thread's own.
#[derive(Debug)]
pub(super) struct InLane<'a> {
    lane: &'a Lane,
    own: bool,
    _gate: RwLockReadGuard<'a, ()>,
}

/// All lanes are closed; nobody else is in any.
#[derive(Debug)]
pub(super) struct Closed<'a> {
    lanes: &'a [Lane],
    _gates: Vec<RwLockWriteGuard<'a, ()>>,
}

impl Lanes {
    pub(super) fn new(cpus: u32) -> Self {
        let shared = cpus.next_power_of_two() as usize;
        let own = (OWN_PER_CPU * shared).min(threads::NUMBERS);
        let lane = |_| Lane { gate: RwLock::new(()), spread: Default::default() };
        Self { all: (0..own + shared).map(lane).collect(), own }
    }
    /// Enters this thread's lane.
    pub(super) fn enter(&self, patience: Patience) -> Option<InLane<'_>> {
        let number = threads::number();
        let own = number < self.own;
        let at = if own { number } else { self.own + (number & (self.all.len() - self.own - 1)) };
        let lane = &self.all[at];
        Some(InLane { lane, own, _gate: patience.read(&lane.gate)? })
    }
    /// Closes all lanes, in order.
    pub(super) fn close(&self, patience: Patience) -> Option<Closed<'_>> {
        let gates: Option<Vec<_>> = self.all.iter().map(|lane| patience.write(&lane.gate)).collect();
        Some(Closed { lanes: &self.all, _gates: gates? })
    }
}

impl InLane<'_> {
    /// A move in this lane's part of `spread`.
    pub(super) fn spread(&self, step: Move) {
        let spread = &self.lane.spread[step.pool];
        if self.own { spread.make_alone(step) } else { spread.make(step) }
    }
}

impl Closed<'_> {
    /// The most that any task pins on every CPU.
    pub(super) fn top_spread(&self, pool: usize) -> u32 {
        Histogram::top(self.lanes.iter().map(move |lane| &lane.spread[pool]))
    }
}

/// Own lanes for each CPU: room for threads that are not running just now.
const OWN_PER_CPU: usize = if cfg!(loom) { 1 } else { 4 };

/// A number for each living thread.
#[cfg(not(loom))]
mod threads {
    use std::sync::atomic::{
        AtomicU64, AtomicUsize,
        Ordering::{Acquire, Relaxed, Release},
    };

    /// Numbers below this one belong to one thread at a time.
    pub(super) const NUMBERS: usize = 256;
    static TAKEN: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];
    static SHARED: AtomicUsize = AtomicUsize::new(0);

    /// This thread's number, given back when the thread ends.
    struct Number(usize);

    thread_local! {
        static NUMBER: Number = take();
    }

    /// The lowest number that is free; when all are taken, one that others may have too.
    fn take() -> Number {
        for (at, word) in TAKEN.iter().enumerate() {
            let claim = |bits: u64| (bits != u64::MAX).then(|| bits | (bits + 1));
            if let Ok(bits) = word.fetch_update(Acquire, Relaxed, claim) {
                return Number(at * 64 + bits.trailing_ones() as usize);
            }
        }
        shared()
    }

    fn shared() -> Number {
        Number(NUMBERS + SHARED.fetch_add(1, Relaxed) % NUMBERS)
    }

    /// Release, for the next owner's acquire: it makes its moves after all of this thread's.
    impl Drop for Number {
        fn drop(&mut self) {
            if let Some(word) = TAKEN.get(self.0 / 64) {
                word.fetch_and(!(1 << (self.0 % 64)), Release);
            }
        }
    }

    /// While the thread's locals are being taken down, a shared one.
    pub(super) fn number() -> usize {
        NUMBER.try_with(|number| number.0).unwrap_or_else(|_| shared().0)
    }

    #[cfg(test)]
    mod tests {
        use super::{NUMBERS, number};

        #[test]
        fn living_threads_have_numbers_of_their_own_while_there_are_any() {
            let all = std::sync::Barrier::new(NUMBERS + 20);
            let mut numbers: Vec<usize> = std::thread::scope(|scope| {
                let one = || {
                    let mine = number();
                    all.wait();
                    assert_eq!(mine, number());
                    mine
                };
                let threads: Vec<_> = (0..NUMBERS + 20).map(|_| scope.spawn(one)).collect();
                threads.into_iter().flat_map(|thread| thread.join()).collect()
            });
            numbers.retain(|&number| number < NUMBERS);
            let taken = numbers.len();
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len(), taken, "nobody shares a number below {NUMBERS}");
            // This test's own thread, and those of other tests, may have some.
            assert!(taken > NUMBERS / 2, "{taken}");
            let next = std::thread::scope(|scope| scope.spawn(number).join());
            assert!(next.is_ok_and(|next| next < NUMBERS), "numbers come back");
        }
    }
}

#[cfg(loom)]
mod threads {
    pub(super) const NUMBERS: usize = 256;

    loom::thread_local! {
        static NUMBER: std::cell::Cell<usize> = std::cell::Cell::new(NUMBERS);
    }

    pub(super) fn number() -> usize {
        NUMBER.with(std::cell::Cell::get)
    }

    /// In a model, this thread's number.
    pub fn set_number(number: usize) {
        NUMBER.with(|own| own.set(number));
    }
}

#[cfg(loom)]
pub use threads::set_number;
