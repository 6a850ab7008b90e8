//! The index of the baselines: the same shape as ours, without anything that orders a reader and a writer.
//!
//! Page → region by granules of 512 pages, (file, offset) → probe by open addressing. Words are relaxed atomics, which cost what plain ones do:
//! under a lock nobody sees them change; under one sequence for all, whoever does throws the answer away.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{Mapped, PAGE};

const PAGES: u64 = 512;

#[derive(Debug, Default)]
struct Pair {
    key: AtomicU64,
    value: AtomicU64,
}

/// Fixed room; keys are set once, values change.
#[derive(Debug)]
struct Pairs(Box<[Pair]>);

impl Pairs {
    fn new(room: usize) -> Self {
        Self((0..(room * 2).next_power_of_two()).map(|_| Pair::default()).collect())
    }
    #[inline]
    fn pair(&self, key: u64) -> Option<&Pair> {
        let mask = self.0.len() - 1;
        let first = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..=mask).map(|step| &self.0[first.wrapping_add(step) & mask]).find(|pair| {
            let found = pair.key.load(Relaxed);
            found == key || found == 0
        })
    }
    #[inline]
    fn get(&self, key: u64) -> u64 {
        self.pair(key)
            .map_or(0, |pair| if pair.key.load(Relaxed) == key { pair.value.load(Relaxed) } else { 0 })
    }
    fn set(&self, key: u64, value: u64) {
        if let Some(pair) = self.pair(key) {
            pair.value.store(value, Relaxed);
            pair.key.store(key, Relaxed);
        }
    }
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Region {
    start: AtomicU64,
    end: AtomicU64,
    offset: AtomicU64,
    file: AtomicU64,
}

/// See above. Writers come one at a time.
#[derive(Debug)]
pub(super) struct Plain {
    granules: Pairs,
    leaves: Box<[[AtomicU32; PAGES as usize]]>,
    leaves_used: AtomicU64,
    regions: Box<[Region]>,
    sites: Pairs,
}

fn site(file: u64, offset: u64) -> u64 {
    file << 40 | offset
}

impl Plain {
    pub(super) fn new(regions: usize, probes: usize) -> Self {
        let leaf = || std::array::from_fn(|_| AtomicU32::new(0));
        Self {
            granules: Pairs::new(regions),
            leaves: (0..regions * 2).map(|_| leaf()).collect(),
            leaves_used: AtomicU64::new(0),
            regions: (0..regions).map(|_| Region::default()).collect(),
            sites: Pairs::new(probes),
        }
    }
    /// Any answer, if somebody writes meanwhile.
    #[inline]
    pub(super) fn find(&self, addr: u64) -> Option<u64> {
        let page = addr / PAGE;
        let leaf = self.leaves.get(self.granules.get(page / PAGES + 1).checked_sub(1)? as usize)?;
        let region = leaf[(page % PAGES) as usize].load(Relaxed).checked_sub(1)?;
        let region = self.regions.get(region as usize)?;
        let (start, end) = (region.start.load(Relaxed), region.end.load(Relaxed));
        if !(start..end).contains(&addr) {
            return None;
        }
        let offset = region.offset.load(Relaxed) + (addr - start);
        let probe = self.sites.get(site(region.file.load(Relaxed), offset));
        (probe != 0).then_some(probe)
    }
    pub(super) fn map(&self, mapped: Mapped) {
        let free = self.regions.iter().position(|region| region.end.load(Relaxed) == 0).expect("room");
        let region = &self.regions[free];
        region.start.store(mapped.start, Relaxed);
        region.end.store(mapped.end, Relaxed);
        region.offset.store(mapped.offset, Relaxed);
        region.file.store(mapped.file, Relaxed);
        self.hint(mapped, free as u32 + 1);
    }
    pub(super) fn unmap(&self, mapped: Mapped) {
        self.hint(mapped, 0);
        let region = self.regions.iter().find(|region| {
            region.start.load(Relaxed) == mapped.start && region.end.load(Relaxed) == mapped.end
        });
        region.expect("it was mapped").end.store(0, Relaxed);
    }
    fn hint(&self, mapped: Mapped, region: u32) {
        for page in mapped.start / PAGE..mapped.end / PAGE {
            let key = page / PAGES + 1;
            if self.granules.get(key) == 0 {
                self.granules.set(key, self.leaves_used.fetch_add(1, Relaxed) + 1);
            }
            self.leaves[self.granules.get(key) as usize - 1][(page % PAGES) as usize].store(region, Relaxed);
        }
    }
    /// 0 takes it out.
    pub(super) fn set(&self, file: u64, offset: u64, probe: u64) {
        self.sites.set(site(file, offset), probe);
    }
}
