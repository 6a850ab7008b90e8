//! Baseline `circular`: one bounded queue for all threads (Dmitry Vyukov, "Bounded MPMC queue",
//! 1024cores.net). Each end is moved by a compare-and-swap. Each place has a turn number that says which
//! operation may use it.
//!
//! Like the queue of the reference design, it is not reentrant. A thread that was interrupted after it moved
//! an end, and before it released its place, delays those that come a lap later. A signal handler on the same
//! thread can be one of them. So it is tested without signals.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use super::cpu_area::CpuArea;
use super::instances::{Instances, Memory, Object, objects, range};

#[derive(Debug)]
struct RingEntry {
    turn: AtomicUsize,
    object: AtomicU32,
}

/// One end of the queue, alone on its lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct End(AtomicUsize);

#[derive(Debug)]
pub(crate) struct Circular {
    ends: Box<[End; 2]>,
    places: Box<[RingEntry]>,
    objects: Box<[Object]>,
}

impl Circular {
    pub(crate) fn new(maxactive: u32) -> Self {
        // Twice the room, so that a place is not needed soon if its taker is late.
        let places = (2 * maxactive).next_power_of_two() as usize;
        let place = |turn| RingEntry { turn: AtomicUsize::new(turn), object: AtomicU32::new(0) };
        let queue = Self {
            ends: Box::default(),
            places: (0..places).map(place).collect(),
            objects: objects(maxactive),
        };
        (0..maxactive).for_each(|object| queue.add(object));
        queue
    }
    #[inline]
    fn place(&self, at: usize) -> &RingEntry {
        &self.places[at & (self.places.len() - 1)]
    }
    #[inline]
    fn add(&self, object: u32) {
        let mut tail = self.ends[1].0.load(Relaxed);
        loop {
            let place = self.place(tail);
            if place.turn.load(Acquire) == tail {
                match self.ends[1].0.compare_exchange_weak(tail, tail + 1, Relaxed, Relaxed) {
                    Ok(_) => {
                        place.object.store(object, Relaxed);
                        place.turn.store(tail + 1, Release);
                        return;
                    }
                    Err(now) => tail = now,
                }
            } else {
                tail = self.ends[1].0.load(Relaxed);
            }
        }
    }
}

impl Instances for Circular {
    #[inline]
    fn get(&self, _: &CpuArea) -> Option<u32> {
        let mut head = self.ends[0].0.load(Relaxed);
        loop {
            let place = self.place(head);
            let turn = place.turn.load(Acquire);
            if turn == head + 1 {
                match self.ends[0].0.compare_exchange_weak(head, head + 1, Relaxed, Relaxed) {
                    Ok(_) => {
                        let object = place.object.load(Relaxed);
                        place.turn.store(head + self.places.len(), Release);
                        return Some(object);
                    }
                    Err(now) => head = now,
                }
            } else if turn == head {
                return None;
            } else {
                head = self.ends[0].0.load(Relaxed);
            }
        }
    }
    #[inline]
    fn put(&self, _: &CpuArea, object: u32) {
        self.add(object);
    }
    fn objects(&self) -> u32 {
        self.objects.len() as u32
    }
    fn memory(&self) -> Vec<Memory> {
        vec![("ends", range(&*self.ends)), ("places", range(&self.places)), ("objects", range(&self.objects))]
    }
}
