//! The index of the baselines: the same shape as ours, without anything that orders a reader and a writer.
//!
//! Page → region by granules of 16 pages, (file, offset) → probe by open addressing. Words are relaxed
//! atomics, which cost as much as plain ones. Under a lock no reader sees them change; under the one
//! sequence, a reader that does discards its answer.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::operations::{Mapped, PAGE};

const PAGES: u64 = 16;

const WAYS: usize = 4;

/// One cache line of the table.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bucket {
    keys: [AtomicU64; WAYS],
    values: [AtomicU64; WAYS],
}

impl Bucket {
    #[inline]
    fn place(&self, key: u64) -> Option<(&Self, usize, bool)> {
        for way in 0..WAYS {
            match self.keys[way].load(Relaxed) {
                found if found == key => return Some((self, way, true)),
                0 => return Some((self, way, false)),
                _ => {}
            }
        }
        None
    }
}

/// A table of fixed size; the second field is the shift from a product to a bucket's number. Keys are set
/// once, values change. Ours has the same shape.
#[derive(Debug)]
struct Pairs(Box<[Bucket]>, u32);

impl Pairs {
    fn new(room: usize) -> Self {
        let buckets = (room * 3 / 2).div_ceil(WAYS).next_power_of_two();
        Self((0..buckets).map(|_| Bucket::default()).collect(), 63 - buckets.trailing_zeros())
    }
    /// The bucket and index that has the key (`true`), or a free place for it.
    #[inline]
    fn place(&self, key: u64) -> Option<(&Bucket, usize, bool)> {
        let mixed = (key ^ key >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (mixed >> 1 >> self.1) as usize;
        match self.0.get(first).and_then(|bucket| bucket.place(key)) {
            None => self.place_further(key, first),
            found => found,
        }
    }
    #[cold]
    fn place_further(&self, key: u64, first: usize) -> Option<(&Bucket, usize, bool)> {
        let (sooner, later) = self.0.split_at(first);
        later.iter().chain(sooner).find_map(|bucket| bucket.place(key))
    }
    #[inline]
    fn get(&self, key: u64) -> u64 {
        match self.place(key) {
            Some((bucket, way, true)) => bucket.values[way].load(Relaxed),
            _ => 0,
        }
    }
    fn set(&self, key: u64, value: u64) {
        if let Some((bucket, way, _)) = self.place(key) {
            bucket.values[way].store(value, Relaxed);
            bucket.keys[way].store(key, Relaxed);
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

/// The index that the module describes. Writers take turns.
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
    /// The answer is arbitrary if a writer works meanwhile.
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
    /// Sets the probe at a place; 0 removes it.
    pub(super) fn set(&self, file: u64, offset: u64, probe: u64) {
        self.sites.set(site(file, offset), probe);
    }
}
