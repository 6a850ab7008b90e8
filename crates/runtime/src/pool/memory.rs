//! A pool in memory: on a region that is passed in, or allocated.
//!
//! In: a region and a [`PoolSize`]. Out: a [`Pool`]: where its parts lie. Invariant: nothing in the region is an
//! address, so different processes may map it at different addresses.
//! Does not: decide (see `protocol`), free a region that was passed in.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::ptr::NonNull;

use super::bad_region::{ALIGN, BadRegion, check};
use super::magazine::Magazine;
use super::protocol::{self, NotClosed, Parts, Returned};
use super::sequence::{self, Magazines, Registered};
use super::set;
use super::size::{HEADER, PoolSize};
use super::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// The place where a caller runs.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// A thread with an rseq area, where the kernel writes on which CPU it runs.
    Rseq(Registered),
    /// A CPU's number from any source. It may be outdated, or no CPU may have it.
    Cpu(u32),
}

/// An object that is held. It must be put back to the pool that it came from; if it is forgotten, the pool
/// has lost it.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "an object that is not put back is lost"]
pub struct Held(u32);

/// "Trapline pool", layout 1.
const MARK: u64 = u64::from_le_bytes(*b"TRLPOOL\x01");

/// The beginning of the region. It is read when a pool is opened; later only `closing` and `refs` are.
#[repr(C, align(128))]
struct Header {
    mark: AtomicU64,
    shape: [AtomicU32; 4],
    closing: AtomicU32,
    refs: Refs,
}

/// Separate from what is only read.
#[repr(C, align(128))]
struct Refs(AtomicU32);

const _: () = assert!(size_of::<Header>() == HEADER && size_of::<Magazine>() == 64);

/// A pool in a region. It may be copied; the region must outlive all uses.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    base: NonNull<u8>,
    magazines: Magazines,
    words: usize,
    objects: NonNull<u8>,
    stride: usize,
    shape: PoolSize,
}

// SAFETY: a pool only says where its words are. They are atomic, or (a magazine's) changed in sequences on
// its own CPU. `Registered`, which is bound to a thread, is an argument and not part of it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Addresses and numbers of a pool's parts, in a layout that assembly code relies on (`general` of the
/// processors).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Raw {
    /// Address of the first CPU's magazine; bytes from one to the next (`stride`); number of CPUs (`cpus`).
    pub(crate) magazines: u64,
    pub(crate) stride: u64,
    pub(crate) cpus: u64,
    /// Address of the first object; number of objects (`count`).
    pub(crate) objects: u64,
    pub(crate) count: u64,
}

impl Pool {
    /// Addresses of its parts.
    pub(crate) fn raw(&self) -> Raw {
        Raw {
            magazines: self.magazines.first.as_ptr() as u64,
            stride: self.magazines.stride as u64,
            cpus: self.magazines.cpus.into(),
            objects: self.objects.as_ptr() as u64,
            count: self.shape.objects().into(),
        }
    }
    /// Makes a pool on a region.
    ///
    /// # Safety
    /// `region` points to `bytes` bytes, readable and writable for as long as this or a copy of it is used.
    /// Nothing else uses them.
    ///
    /// # Errors
    /// [`BadRegion`]: too small, or misaligned.
    pub unsafe fn format(region: NonNull<u8>, bytes: usize, shape: PoolSize) -> Result<Self, BadRegion> {
        check(region, bytes, shape.bytes())?;
        // SAFETY: checked above; the caller hands over the region.
        let pool = unsafe {
            region.write_bytes(0, shape.objects_at());
            Self::at(region, shape)
        };
        let numbers = [shape.cpus(), shape.maxactive(), shape.object_bytes(), shape.depth()];
        pool.header().shape.iter().zip(numbers).for_each(|(word, number)| word.store(number, Relaxed));
        (0..shape.cpus()).for_each(|cpu| pool.magazine(cpu).open(shape.depth()));
        for object in 0..shape.objects() {
            // Objects are distributed in blocks, so that neighbours start in the same CPU's bitmap.
            let cpu = u64::from(object) * u64::from(shape.cpus()) / u64::from(shape.objects());
            let _kept = set::put(pool.set(cpu as u32), object);
        }
        pool.header().refs.0.store(shape.objects() + 1, Relaxed);
        pool.header().mark.store(MARK, Release);
        Ok(pool)
    }
    /// Finds the pool that exists on a region.
    ///
    /// # Safety
    /// As for [`format`](Self::format); only pools of this layout write to the region.
    ///
    /// # Errors
    /// [`BadRegion`]: no pool is there, or not a whole one.
    pub unsafe fn open(region: NonNull<u8>, bytes: usize) -> Result<Self, BadRegion> {
        check(region, bytes, HEADER)?;
        // SAFETY: checked above that the header lies in the region; the caller guarantees that the region is
        // readable.
        let header = unsafe { region.cast::<Header>().as_ref() };
        let mark = header.mark.load(Acquire);
        if mark != MARK {
            return Err(BadRegion::NoPool(mark));
        }
        let [cpus, maxactive, object_bytes, depth] = [0, 1, 2, 3].map(|at| header.shape[at].load(Relaxed));
        let shape = PoolSize::new(cpus, Some(maxactive), object_bytes)?.with_depth(depth)?;
        check(region, bytes, shape.bytes())?;
        // SAFETY: a pool of this shape fits the region.
        Ok(unsafe { Self::at(region, shape) })
    }
    /// # Safety
    /// A pool of this shape fits the region.
    unsafe fn at(base: NonNull<u8>, shape: PoolSize) -> Self {
        // SAFETY: both lie in the region, by its shape.
        let (first, objects) = unsafe { (base.add(HEADER), base.add(shape.objects_at())) };
        let magazines = Magazines { first, stride: shape.cpu_stride(), cpus: shape.cpus() };
        Self { base, magazines, words: shape.words(), objects, stride: shape.object_stride(), shape }
    }
    /// Takes an object that no other caller holds. `None`: there is none, and the caller counts it as missed.
    #[inline]
    #[must_use]
    pub fn get(&self, at: At) -> Option<Held> {
        protocol::get(self, at).map(Held)
    }
    /// Puts an object back. Never fails.
    #[inline]
    pub fn put(&self, at: At, held: Held) -> Returned {
        protocol::put(self, at, held.0)
    }
    /// Address of the object: [`object_bytes`](PoolSize::object_bytes) bytes on cache lines of its own. Its
    /// content stays as it was while it is free.
    #[inline]
    #[must_use]
    pub fn object(&self, held: &Held) -> NonNull<u8> {
        // SAFETY: object numbers are below the pool's number of objects, and that many strides lie behind
        // `self.objects` (`PoolSize::bytes`).
        unsafe { self.objects.add(held.0 as usize * self.stride) }
    }
    /// Closes the pool: nothing can be taken any more, and objects that are held are dropped when they are
    /// put. `Last` means that no object was held. `restart` is
    /// [`restart_sequences`](super::restart_sequences), or nothing (`|| true`) if no caller used
    /// [`At::Rseq`].
    ///
    /// No get may be running when the memory is released.
    ///
    /// # Errors
    /// [`NotClosed`]; nothing has changed then.
    pub fn close(&self, restart: impl FnOnce() -> bool) -> Result<Returned, NotClosed> {
        protocol::close(self, restart)
    }
    /// Number of objects that are not dropped, and 1 while the pool is open. Once it is closed, that is how
    /// many are held. May be called only while the memory exists.
    #[must_use]
    pub fn not_dropped(&self) -> u32 {
        self.refs().load(Acquire)
    }
    /// Address of the region.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }
    /// Its size.
    #[must_use]
    pub const fn shape(&self) -> PoolSize {
        self.shape
    }
    /// Number of free objects; approximate while other threads run.
    #[must_use]
    pub fn free(&self) -> u32 {
        (0..self.shape.cpus()).map(|cpu| self.magazine(cpu).len() + set::free(self.set(cpu))).sum()
    }
    fn header(&self) -> &Header {
        // SAFETY: the region begins with a header (`format`, `open`) and outlives this value.
        unsafe { self.base.cast::<Header>().as_ref() }
    }
    #[inline]
    fn part(&self, cpu: u32) -> NonNull<u8> {
        let cpu = cpu.min(self.magazines.cpus - 1);
        // SAFETY: one part of `stride` bytes for each CPU lies behind `first`, by the shape.
        unsafe { self.magazines.first.add(cpu as usize * self.magazines.stride) }
    }
}

impl Held {
    /// Its number, to be kept in a word; [`from_number`](Self::from_number) takes it back.
    #[must_use]
    pub const fn into_number(self) -> u32 {
        self.0
    }
    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.0
    }
    /// # Safety
    /// The number comes from [`into_number`](Self::into_number), of an object of the pool that it will be
    /// used with, and is converted back once.
    pub const unsafe fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl Parts for Pool {
    type At = At;
    fn cpus(&self) -> u32 {
        self.magazines.cpus
    }
    fn magazine(&self, cpu: u32) -> &Magazine {
        // SAFETY: a CPU's part begins with its magazine; its words are atomic.
        unsafe { self.part(cpu).cast::<Magazine>().as_ref() }
    }
    #[inline]
    fn set(&self, cpu: u32) -> &[AtomicU64] {
        // SAFETY: that many words lie at `SET` in a CPU's part, by the shape.
        unsafe { core::slice::from_raw_parts(self.part(cpu).add(PoolSize::SET).cast().as_ptr(), self.words) }
    }
    fn refs(&self) -> &AtomicU32 {
        &self.header().refs.0
    }
    fn closing(&self) -> &AtomicU32 {
        &self.header().closing
    }
    fn depth(&self) -> u32 {
        self.shape.depth()
    }
    #[inline]
    fn take_from_magazine(&self, at: At) -> Result<u32, u32> {
        match at {
            At::Rseq(thread) => sequence::take(self.magazines, thread).map_err(|cpu| self.known(cpu)),
            At::Cpu(cpu) => Err(self.known(cpu)),
        }
    }
    #[inline]
    fn put_into_magazine(&self, at: At, object: u32) -> Result<(), u32> {
        match at {
            At::Rseq(thread) => sequence::put(self.magazines, thread, object).map_err(|cpu| self.known(cpu)),
            At::Cpu(cpu) => Err(self.known(cpu)),
        }
    }
}

impl Pool {
    /// A CPU that has a part, for any number.
    #[inline]
    const fn known(&self, cpu: u32) -> u32 {
        if cpu < self.magazines.cpus {
            cpu
        } else if self.magazines.cpus == 0 {
            0
        } else {
            cpu % self.magazines.cpus
        }
    }
}

/// A pool on memory that it allocates. If it is dropped without being closed, the memory stays, since a call
/// may hold an instance.
#[derive(Debug)]
pub struct OwnedPool(Pool);

impl OwnedPool {
    /// Allocates the pool.
    ///
    /// # Errors
    /// [`BadRegion::OutOfMemory`].
    pub fn new(shape: PoolSize) -> Result<Self, BadRegion> {
        let none = BadRegion::OutOfMemory(shape.bytes());
        let layout = layout(shape).ok_or(none)?;
        // SAFETY: the layout is not empty: it holds a header.
        let region = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(none)?;
        // SAFETY: just allocated, so no other code uses it.
        Ok(Self(unsafe { Pool::format(region, shape.bytes(), shape) }?))
    }
    /// Closes the pool.
    ///
    /// # Safety
    /// No get is running, and none will come, through any copy of the pool (`epoch`).
    ///
    /// # Errors
    /// The pool, unchanged, if sequences cannot be restarted.
    pub unsafe fn close(self, restart: impl FnOnce() -> bool) -> Result<Leaving, (Self, NotClosed)> {
        match self.0.close(restart) {
            Ok(closed) => Ok(Leaving { pool: self.0, closed }),
            Err(error) => Err((self, error)),
        }
    }
}

impl core::ops::Deref for OwnedPool {
    type Target = Pool;
    fn deref(&self) -> &Pool {
        &self.0
    }
}

/// A closed pool of which objects may be held. To be freed off the hit path, by the code that polls.
#[derive(Debug)]
pub struct Leaving {
    pool: Pool,
    closed: Returned,
}

impl Leaving {
    /// What closing returned: [`Last`](Returned::Last) if no object was held.
    pub const fn closed(&self) -> Returned {
        self.closed
    }
    /// Number of objects that are held.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.pool.not_dropped()
    }
    /// Frees the memory if no object is held.
    ///
    /// # Errors
    /// The pool, if one is.
    pub fn try_free(self) -> Result<(), Self> {
        match (self.held(), layout(self.pool.shape)) {
            (0, Some(layout)) => {
                // SAFETY: allocated with this layout by `OwnedPool::new`. The last subtraction was the last
                // access (acquire above), and no get is running (`OwnedPool::close`).
                unsafe { dealloc(self.pool.base.as_ptr(), layout) };
                Ok(())
            }
            _ => Err(self),
        }
    }
}

fn layout(shape: PoolSize) -> Option<Layout> {
    Layout::from_size_align(shape.bytes(), ALIGN).ok()
}
