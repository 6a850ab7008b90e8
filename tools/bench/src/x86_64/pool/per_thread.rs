//! The bound `per-thread`: each thread has `maxactive` objects for itself, on a stack that no other thread
//! touches. Nothing can be faster. But its memory grows with the number of threads, whether they take objects
//! or not, which the reference design wanted to avoid.
//!
//! A signal handler that puts back what it takes leaves the stack as it was, so it may run between any two
//! instructions.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use super::cpu_area::CpuArea;
use super::instances::{Instances, Memory, Object, objects, range};

#[derive(Debug)]
#[repr(align(128))]
struct Own {
    top: AtomicU32,
    places: Box<[AtomicU32]>,
}

#[derive(Debug)]
pub(crate) struct PerThread {
    threads: Box<[Own]>,
    objects: Box<[Object]>,
}

impl PerThread {
    pub(crate) fn new(threads: u32, maxactive: u32) -> Self {
        // Sixteen more words for each thread, so that no two threads share a line.
        let places =
            |thread| (0..maxactive + 16).map(move |n| AtomicU32::new(thread * maxactive + n)).collect();
        let own = |thread| Own { top: AtomicU32::new(maxactive), places: places(thread) };
        Self { threads: (0..threads).map(own).collect(), objects: objects(threads * maxactive) }
    }
}

impl Instances for PerThread {
    #[inline]
    fn get(&self, cpu_area: &CpuArea) -> Option<u32> {
        let own = &self.threads[cpu_area.thread];
        let top = own.top.load(Relaxed).checked_sub(1)?;
        let object = own.places.get(top as usize)?.load(Relaxed);
        own.top.store(top, Relaxed);
        Some(object)
    }
    #[inline]
    fn put(&self, cpu_area: &CpuArea, object: u32) {
        let own = &self.threads[cpu_area.thread];
        let top = own.top.load(Relaxed);
        if let Some(place) = own.places.get(top as usize) {
            place.store(object, Relaxed);
            std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
            own.top.store(top + 1, Relaxed);
        }
    }
    fn objects(&self) -> u32 {
        self.objects.len() as u32
    }
    fn memory(&self) -> Vec<Memory> {
        let places = self.threads.iter().map(|own| ("slots", range(&own.places)));
        [("threads", range(&self.threads)), ("objects", range(&self.objects))]
            .into_iter()
            .chain(places)
            .collect()
    }
}
