//! The trait of all measured pools, ours and the baselines: pools of numbered objects.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::AtomicU32;

use trapline_runtime::pool::protocol::Parts as _;
use trapline_runtime::pool::{At, Held, OwnedPool, PoolSize, restart_sequences};

use super::cpu_area::CpuArea;

/// Bytes of an object: what a return instance takes.
pub(crate) const OBJECT: usize = 64;

/// A range of memory, with a name.
pub(crate) type Memory = (&'static str, Range<usize>);

/// A pool under test.
pub(crate) trait Instances: Sync {
    /// Takes an object that no thread holds. `None` if there is none.
    fn get(&self, cpu_area: &CpuArea) -> Option<u32>;
    /// Puts an object back.
    fn put(&self, cpu_area: &CpuArea, object: u32);
    /// Number of objects.
    fn objects(&self) -> u32;
    /// The memory that the pool stores to, by name.
    fn memory(&self) -> Vec<Memory>;
    /// Bytes of all memory, objects included.
    fn bytes(&self) -> usize {
        self.memory().iter().map(|(_, range)| range.len()).sum()
    }
}

/// The range of a slice.
pub(crate) fn range<T>(slice: &[T]) -> Range<usize> {
    let range = slice.as_ptr_range();
    range.start.addr()..range.end.addr()
}

/// An object of a baseline, with one word for the baseline's use.
#[repr(align(64))]
#[derive(Debug)]
pub(crate) struct Object {
    pub(super) word: AtomicU32,
    _rest: [u8; OBJECT - 4],
}

/// Makes this many objects.
pub(crate) fn objects(count: u32) -> Box<[Object]> {
    (0..count).map(|_| Object { word: AtomicU32::new(0), _rest: [0; OBJECT - 4] }).collect()
}

/// Our pool. Without magazines it is as where there is no rseq, when only the CPU's number is known.
#[derive(Debug)]
pub(crate) struct Ours<const SHELVES: bool>(ManuallyDrop<OwnedPool>);

impl<const SHELVES: bool> Ours<SHELVES> {
    /// With magazines of the default depth, or with none.
    pub(crate) fn new(cpus: u32, maxactive: u32) -> anyhow::Result<Self> {
        let shape = PoolSize::new(cpus, Some(maxactive), OBJECT as u32)?;
        let shape = if SHELVES { shape } else { shape.with_depth(0)? };
        Ok(Self(ManuallyDrop::new(OwnedPool::new(shape)?)))
    }
    #[inline]
    fn at(cpu_area: &CpuArea) -> At {
        if SHELVES { cpu_area.at() } else { At::Cpu(cpu_area.cpu()) }
    }
}

impl<const SHELVES: bool> Instances for Ours<SHELVES> {
    #[inline]
    fn get(&self, cpu_area: &CpuArea) -> Option<u32> {
        self.0.get(Self::at(cpu_area)).map(Held::into_number)
    }
    #[inline]
    fn put(&self, cpu_area: &CpuArea, object: u32) {
        // SAFETY: `get` returned this number, and its holder gives it up.
        let held = unsafe { Held::from_number(object) };
        let _open = self.0.put(Self::at(cpu_area), held);
    }
    fn objects(&self) -> u32 {
        self.0.shape().objects()
    }
    fn memory(&self) -> Vec<Memory> {
        let pool = &**self.0;
        let (magazine, set) = (std::ptr::from_ref(pool.magazine(0)).addr(), range(pool.set(0)).start);
        let stride =
            if pool.cpus() > 1 { std::ptr::from_ref(pool.magazine(1)).addr() - magazine } else { 256 };
        let header = std::ptr::from_ref(pool.closing()).addr() & !127;
        let mut memory = vec![("header", header..magazine)];
        for cpu in 0..pool.cpus() as usize {
            let at = magazine + cpu * stride;
            memory.push(("shelf", at..at + (set - magazine)));
            memory.push(("set", at + (set - magazine)..at + stride));
        }
        let end = magazine + pool.cpus() as usize * stride;
        memory.push(("objects", end..header + pool.shape().bytes()));
        memory
    }
}

impl<const SHELVES: bool> Drop for Ours<SHELVES> {
    fn drop(&mut self) {
        // SAFETY: taken once, here. No get can run any more: the only user is dropping it.
        let closed = unsafe { ManuallyDrop::take(&mut self.0).close(restart_sequences) };
        if let Ok(leaving) = closed {
            let _held = leaving.try_free();
        }
    }
}

/// Ours, one pool for each thread. The difference to one shared pool is the cost of sharing.
#[derive(Debug)]
pub(crate) struct Apart(Vec<Ours<true>>);

impl Apart {
    pub(crate) fn new(cpus: u32, threads: usize, maxactive: u32) -> anyhow::Result<Self> {
        (0..threads).map(|_| Ours::new(cpus, maxactive)).collect::<anyhow::Result<_>>().map(Self)
    }
}

impl Instances for Apart {
    #[inline]
    fn get(&self, cpu_area: &CpuArea) -> Option<u32> {
        let own = &self.0[cpu_area.thread];
        own.get(cpu_area).map(|object| object + cpu_area.thread as u32 * own.objects())
    }
    #[inline]
    fn put(&self, cpu_area: &CpuArea, object: u32) {
        let own = &self.0[cpu_area.thread];
        own.put(cpu_area, object - cpu_area.thread as u32 * own.objects());
    }
    fn objects(&self) -> u32 {
        self.0.iter().map(Instances::objects).sum()
    }
    fn memory(&self) -> Vec<Memory> {
        self.0.iter().flat_map(Instances::memory).collect()
    }
}
