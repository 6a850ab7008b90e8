//! Baselines `shared-array`, `line`, `element`, `zigzag`, `random`: one array for all threads, after the
//! description of the reference design. A place is empty or names a free object. A thread begins at its CPU's
//! place, and goes on to the next until a compare-and-swap succeeds.
//!
//! | how | a CPU begins at | place *i* lies |
//! |---|---|---|
//! | `shared-array` | its share of the array | at word *i* |
//! | `line` | its cache line of the array | at word *i* |
//! | `element` | its share | on a line of its own |
//! | `zigzag` | its number | at word 8 *i*, and so on round: neighbours lie a line apart |
//! | `random` | takes anywhere, puts where the object was taken | at word *i* |

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::cpu_area::CpuArea;
use super::instances::{Instances, Memory, Object, objects, range};

/// Words of a cache line.
const LINE: usize = 8;

#[derive(Debug)]
#[repr(align(64))]
struct Words([AtomicU64; LINE]);

/// One row of the table above.
pub(crate) trait Rule: Sync {
    /// Number of places for this many objects.
    fn places(cpus: usize, maxactive: usize) -> usize;
    /// Word of place `i`, among this many words.
    fn word(i: usize, words: usize) -> usize;
    /// Words that this many places need.
    fn words(places: usize) -> usize {
        places
    }
    /// Place at which a CPU begins. All numbers are powers of two, so no division is needed.
    fn start(cpu: usize, cpus: usize, places: usize) -> usize;
    /// Whether objects are taken anywhere, and put back where they were taken.
    const RANDOM: bool = false;
}

pub(crate) struct Share;
pub(crate) struct ByLine;
pub(crate) struct Element;
pub(crate) struct Zigzag;
pub(crate) struct Random;

fn share(cpu: usize, cpus: usize, places: usize) -> usize {
    cpu * (places / cpus)
}

impl Rule for Share {
    fn places(cpus: usize, maxactive: usize) -> usize {
        maxactive.max(cpus).next_power_of_two()
    }
    fn word(i: usize, _: usize) -> usize {
        i
    }
    fn start(cpu: usize, cpus: usize, places: usize) -> usize {
        share(cpu, cpus, places)
    }
}
impl Rule for ByLine {
    fn places(cpus: usize, maxactive: usize) -> usize {
        (cpus.next_power_of_two() * LINE).max(maxactive.next_power_of_two())
    }
    fn word(i: usize, _: usize) -> usize {
        i
    }
    fn start(cpu: usize, _: usize, _: usize) -> usize {
        cpu * LINE
    }
}
impl Rule for Element {
    fn places(cpus: usize, maxactive: usize) -> usize {
        Share::places(cpus, maxactive)
    }
    fn word(i: usize, _: usize) -> usize {
        i * LINE
    }
    fn words(places: usize) -> usize {
        places * LINE
    }
    fn start(cpu: usize, cpus: usize, places: usize) -> usize {
        share(cpu, cpus, places)
    }
}
impl Rule for Zigzag {
    fn places(cpus: usize, maxactive: usize) -> usize {
        maxactive.max(cpus).max(LINE).next_power_of_two()
    }
    fn word(i: usize, words: usize) -> usize {
        let lines = words / LINE;
        (i & (lines - 1)) * LINE + i / lines
    }
    fn start(cpu: usize, _: usize, _: usize) -> usize {
        cpu
    }
}
impl Rule for Random {
    fn places(cpus: usize, maxactive: usize) -> usize {
        Share::places(cpus, maxactive)
    }
    fn word(i: usize, _: usize) -> usize {
        i
    }
    fn start(cpu: usize, cpus: usize, places: usize) -> usize {
        share(cpu, cpus, places)
    }
    const RANDOM: bool = true;
}

#[derive(Debug)]
pub(crate) struct Array<R> {
    words: Box<[Words]>,
    /// Word of each place. Like `starts`, where each CPU begins, it is a lookup table: the cheapest form.
    order: Box<[u32]>,
    starts: Box<[u32]>,
    /// Each object holds the place where it was taken (`random`); its holder writes that.
    objects: Box<[Object]>,
    _rule: std::marker::PhantomData<R>,
}

impl<R: Rule> Array<R> {
    pub(crate) fn new(cpus: u32, maxactive: u32) -> Self {
        let places = R::places(cpus as usize, maxactive as usize);
        let words = R::words(places).next_multiple_of(LINE);
        let array = Self {
            words: (0..words / LINE).map(|_| Words(Default::default())).collect(),
            order: (0..places).map(|i| R::word(i, words) as u32).collect(),
            starts: (0..cpus as usize)
                .map(|cpu| (R::start(cpu, cpus as usize, places) & (places - 1)) as u32)
                .collect(),
            objects: objects(maxactive),
            _rule: std::marker::PhantomData,
        };
        // Spread the objects evenly, as the CPUs' first places are.
        for object in 0..maxactive {
            array.put_from(object as usize * places / maxactive as usize, object);
        }
        array
    }
    #[inline]
    fn place(&self, i: usize) -> &AtomicU64 {
        let word = self.order[i & (self.order.len() - 1)] as usize;
        &self.words[word / LINE].0[word % LINE]
    }
    #[inline]
    fn start(&self, cpu_area: &CpuArea) -> usize {
        self.starts.get(cpu_area.cpu() as usize).map_or(0, |&at| at as usize)
    }
    #[inline]
    fn put_from(&self, mut i: usize, object: u32) {
        while self.place(i).compare_exchange(0, u64::from(object) + 1, Release, Relaxed).is_err() {
            i += 1;
        }
    }
}

impl<R: Rule> Instances for Array<R> {
    #[inline]
    fn get(&self, cpu_area: &CpuArea) -> Option<u32> {
        let first = if R::RANDOM { cpu_area.random() as usize } else { self.start(cpu_area) };
        for i in first..first + self.order.len() {
            let place = self.place(i);
            let seen = place.load(Acquire);
            if seen != 0 && place.compare_exchange(seen, 0, Acquire, Relaxed).is_ok() {
                let object = (seen - 1) as u32;
                if R::RANDOM {
                    self.objects[object as usize].word.store((i & (self.order.len() - 1)) as u32, Relaxed);
                }
                return Some(object);
            }
        }
        None
    }
    #[inline]
    fn put(&self, cpu_area: &CpuArea, object: u32) {
        let first = if R::RANDOM {
            self.objects[object as usize].word.load(Relaxed) as usize
        } else {
            self.start(cpu_area)
        };
        self.put_from(first, object);
    }
    fn objects(&self) -> u32 {
        self.objects.len() as u32
    }
    fn memory(&self) -> Vec<Memory> {
        vec![("array", range(&self.words)), ("objects", range(&self.objects))]
    }
}
