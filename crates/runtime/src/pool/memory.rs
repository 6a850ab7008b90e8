//! A pool in memory: on a region that is handed in, or allocated.
//!
//! In: a region and a [`Shape`]. Out: a [`Pool`]: where its parts lie. Invariant: nothing in the region is an address, so it may lie
//! at different ones in different processes. Does not: decide (see `protocol`), free a region that was handed in.

use alloc::alloc::{Layout, alloc_zeroed, dealloc};
use core::fmt;
use core::ptr::NonNull;

use super::native::{self, Registered, Shelves};
use super::protocol::{self, NotClosed, Parts, Returned};
use super::set;
use super::shape::{BadShape, HEADER, Shape};
use super::shelf::Shelf;
use super::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};

/// Where a caller runs.
#[derive(Clone, Copy, Debug)]
pub enum At {
    /// A thread that the kernel keeps told on which CPU it runs.
    Rseq(Registered),
    /// A CPU's number, from wherever; it may be outdated, or of no CPU at all.
    Cpu(u32),
}

/// An object that is held. It must be put back to the pool that it came from; forgotten, it is lost to the pool.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "an object that is not put back is lost"]
pub struct Held(u32);

/// Why a region cannot be a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadRegion {
    /// The pool cannot have that shape.
    Shape(BadShape),
    /// Bytes given and wanted.
    Small {
        /// Bytes given.
        bytes: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// It does not begin at a multiple of 128.
    Misaligned(usize),
    /// There is no pool in it.
    NoPool(u64),
    /// No memory of so many bytes.
    OutOfMemory(usize),
}

impl fmt::Display for BadRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(shape) => shape.fmt(f),
            Self::Small { bytes, wanted } => write!(f, "a pool of {wanted} bytes in {bytes}"),
            Self::Misaligned(at) => write!(f, "a pool at {at:#x}: it must begin at a multiple of {ALIGN}"),
            Self::NoPool(mark) => write!(f, "no pool lies here: its mark is {mark:#x}"),
            Self::OutOfMemory(bytes) => write!(f, "no memory for a pool of {bytes} bytes"),
        }
    }
}

impl core::error::Error for BadRegion {}

impl From<BadShape> for BadRegion {
    fn from(shape: BadShape) -> Self {
        Self::Shape(shape)
    }
}

const ALIGN: usize = 128;
/// "Trapline pool", layout 1.
const MARK: u64 = u64::from_le_bytes(*b"TRLPOOL\x01");

/// What lies at the beginning. Read when a pool is opened; later only `closing` and `refs` are.
#[repr(C, align(128))]
struct Header {
    mark: AtomicU64,
    shape: [AtomicU32; 4],
    closing: AtomicU32,
    refs: Refs,
}

/// Apart from what is only read.
#[repr(C, align(128))]
struct Refs(AtomicU32);

const _: () = assert!(size_of::<Header>() == HEADER && size_of::<Shelf>() == 64);

/// A pool in a region. Whoever has one may copy it; the region must outlive all uses.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    base: NonNull<u8>,
    shelves: Shelves,
    words: usize,
    objects: NonNull<u8>,
    stride: usize,
    shape: Shape,
}

// SAFETY: a pool is where its words lie; they are atomic, or (a shelf's) changed in sequences by the thread's own CPU. `Registered`, which
// is bound to a thread, is an argument and not part of it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Where a pool's parts lie: addresses and numbers in a layout that code in assembly knows (`general` of the twins).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Raw {
    /// The first CPU's shelf, bytes from one to the next, and CPUs.
    pub(crate) shelves: u64,
    pub(crate) stride: u64,
    pub(crate) cpus: u64,
    /// The first object, and how many there are.
    pub(crate) objects: u64,
    pub(crate) count: u64,
}

impl Pool {
    /// Where its parts lie.
    pub(crate) fn raw(&self) -> Raw {
        Raw {
            shelves: self.shelves.first.as_ptr() as u64,
            stride: self.shelves.stride as u64,
            cpus: self.shelves.cpus.into(),
            objects: self.objects.as_ptr() as u64,
            count: self.shape.objects().into(),
        }
    }
    /// Makes a pool on a region.
    ///
    /// # Safety
    /// `region` points to `bytes` bytes, readable and writable for as long as this or a copy of it is used, used by
    /// nothing else.
    ///
    /// # Errors
    /// [`BadRegion`]: too small, or misaligned.
    pub unsafe fn format(region: NonNull<u8>, bytes: usize, shape: Shape) -> Result<Self, BadRegion> {
        check(region, bytes, shape.bytes())?;
        // SAFETY: checked above; the caller gives the region to us.
        let pool = unsafe {
            region.write_bytes(0, shape.objects_at());
            Self::at(region, shape)
        };
        let numbers = [shape.cpus(), shape.maxactive(), shape.object_bytes(), shape.depth()];
        pool.header().shape.iter().zip(numbers).for_each(|(word, number)| word.store(number, Relaxed));
        (0..shape.cpus()).for_each(|cpu| pool.shelf(cpu).open(shape.depth()));
        for object in 0..shape.objects() {
            // In blocks, so that neighbours begin with one CPU.
            let cpu = u64::from(object) * u64::from(shape.cpus()) / u64::from(shape.objects());
            let _kept = set::put(pool.set(cpu as u32), object);
        }
        pool.header().refs.0.store(shape.objects() + 1, Relaxed);
        pool.header().mark.store(MARK, Release);
        Ok(pool)
    }
    /// Finds the pool that someone made on a region.
    ///
    /// # Safety
    /// As [`format`](Self::format); the region is written by pools of this layout only.
    ///
    /// # Errors
    /// [`BadRegion`]: no pool is there, or not a whole one.
    pub unsafe fn open(region: NonNull<u8>, bytes: usize) -> Result<Self, BadRegion> {
        check(region, bytes, HEADER)?;
        // SAFETY: checked above: the header lies in the region, which the caller vouches for.
        let header = unsafe { region.cast::<Header>().as_ref() };
        let mark = header.mark.load(Acquire);
        if mark != MARK {
            return Err(BadRegion::NoPool(mark));
        }
        let [cpus, maxactive, object_bytes, depth] = [0, 1, 2, 3].map(|at| header.shape[at].load(Relaxed));
        let shape = Shape::new(cpus, Some(maxactive), object_bytes)?.with_depth(depth)?;
        check(region, bytes, shape.bytes())?;
        // SAFETY: a pool of this shape fits the region.
        Ok(unsafe { Self::at(region, shape) })
    }
    /// # Safety
    /// A pool of this shape fits the region.
    unsafe fn at(base: NonNull<u8>, shape: Shape) -> Self {
        // SAFETY: both lie in the region, by its shape.
        let (first, objects) = unsafe { (base.add(HEADER), base.add(shape.objects_at())) };
        let shelves = Shelves { first, stride: shape.cpu_stride(), cpus: shape.cpus() };
        Self { base, shelves, words: shape.words(), objects, stride: shape.object_stride(), shape }
    }
    /// Takes an object that nobody else holds. `None`: there is none, which the caller counts as missed.
    #[inline]
    #[must_use]
    pub fn get(&self, at: At) -> Option<Held> {
        protocol::get(self, at).map(Held)
    }
    /// Puts it back. Never fails.
    #[inline]
    pub fn put(&self, at: At, held: Held) -> Returned {
        protocol::put(self, at, held.0)
    }
    /// Where the object lies: [`object_bytes`](Shape::object_bytes) bytes on cache lines of its own. What was written there stays while it is free.
    #[inline]
    #[must_use]
    pub fn object(&self, held: &Held) -> NonNull<u8> {
        // SAFETY: object numbers are below `objects`, and so many strides lie behind `objects` (`Shape::bytes`).
        unsafe { self.objects.add(held.0 as usize * self.stride) }
    }
    /// Closes the pool: nothing can be taken any more, what is held is dropped when it is put. `Last`: nothing was held. `restart` is
    /// [`restart_sequences`](super::restart_sequences), or nothing (`|| true`) where nobody used [`At::Rseq`].
    ///
    /// No get may be running when the memory is released.
    ///
    /// # Errors
    /// [`NotClosed`]; nothing has changed then.
    pub fn close(&self, restart: impl FnOnce() -> bool) -> Result<Returned, NotClosed> {
        protocol::close(self, restart)
    }
    /// Objects that are not dropped, and 1 while it is open: how many are held, once it is closed. Only while the memory is there.
    #[must_use]
    pub fn not_dropped(&self) -> u32 {
        self.refs().load(Acquire)
    }
    /// Where it begins.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.base.addr().get() as u64
    }
    /// How large it is.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }
    /// How many are free, roughly: others go on.
    #[must_use]
    pub fn free(&self) -> u32 {
        (0..self.shape.cpus()).map(|cpu| self.shelf(cpu).len() + set::free(self.set(cpu))).sum()
    }
    fn header(&self) -> &Header {
        // SAFETY: the region begins with a header (`format`, `open`) and outlives us.
        unsafe { self.base.cast::<Header>().as_ref() }
    }
    #[inline]
    fn part(&self, cpu: u32) -> NonNull<u8> {
        let cpu = cpu.min(self.shelves.cpus - 1);
        // SAFETY: one part of `stride` bytes for each CPU lies behind `first`, by the shape.
        unsafe { self.shelves.first.add(cpu as usize * self.shelves.stride) }
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
    /// The number comes from [`into_number`](Self::into_number), of an object of the pool that it will be used with, and comes
    /// back once.
    pub const unsafe fn from_number(number: u32) -> Self {
        Self(number)
    }
}

fn check(region: NonNull<u8>, bytes: usize, wanted: usize) -> Result<(), BadRegion> {
    if !region.addr().get().is_multiple_of(ALIGN) {
        return Err(BadRegion::Misaligned(region.addr().get()));
    }
    if bytes < wanted { Err(BadRegion::Small { bytes, wanted }) } else { Ok(()) }
}

impl Parts for Pool {
    type At = At;
    fn cpus(&self) -> u32 {
        self.shelves.cpus
    }
    fn shelf(&self, cpu: u32) -> &Shelf {
        // SAFETY: a CPU's part begins with its shelf, whose words are atomic.
        unsafe { self.part(cpu).cast::<Shelf>().as_ref() }
    }
    #[inline]
    fn set(&self, cpu: u32) -> &[AtomicU64] {
        // SAFETY: so many words lie at `SET` in a CPU's part, by the shape.
        unsafe { core::slice::from_raw_parts(self.part(cpu).add(Shape::SET).cast().as_ptr(), self.words) }
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
    fn take_from_shelf(&self, at: At) -> Result<u32, u32> {
        match at {
            At::Rseq(thread) => native::take(self.shelves, thread).map_err(|cpu| self.known(cpu)),
            At::Cpu(cpu) => Err(self.known(cpu)),
        }
    }
    #[inline]
    fn put_on_shelf(&self, at: At, object: u32) -> Result<(), u32> {
        match at {
            At::Rseq(thread) => native::put(self.shelves, thread, object).map_err(|cpu| self.known(cpu)),
            At::Cpu(cpu) => Err(self.known(cpu)),
        }
    }
}

impl Pool {
    /// A CPU that has a part, for any number.
    #[inline]
    const fn known(&self, cpu: u32) -> u32 {
        if cpu < self.shelves.cpus {
            cpu
        } else if self.shelves.cpus == 0 {
            0
        } else {
            cpu % self.shelves.cpus
        }
    }
}

/// A pool on memory of our own. Dropped without being closed, the memory stays: somebody may hold an instance.
#[derive(Debug)]
pub struct OwnedPool(Pool);

impl OwnedPool {
    /// Allocates it.
    ///
    /// # Errors
    /// [`BadRegion::OutOfMemory`].
    pub fn new(shape: Shape) -> Result<Self, BadRegion> {
        let none = BadRegion::OutOfMemory(shape.bytes());
        let layout = layout(shape).ok_or(none)?;
        // SAFETY: the layout is not empty: it holds a header.
        let region = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(none)?;
        // SAFETY: just allocated, ours alone.
        Ok(Self(unsafe { Pool::format(region, shape.bytes(), shape) }?))
    }
    /// Closes it.
    ///
    /// # Safety
    /// No get is running, none will come, through any copy of the pool (`epoch`).
    ///
    /// # Errors
    /// Itself, unchanged, if sequences cannot be restarted.
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

/// A closed pool, some of whose objects may be held. To be freed off the hit path, by whoever polls.
#[derive(Debug)]
pub struct Leaving {
    pool: Pool,
    closed: Returned,
}

impl Leaving {
    /// What the closing itself was told: [`Last`](Returned::Last), if nothing was held.
    pub const fn closed(&self) -> Returned {
        self.closed
    }
    /// How many are held.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.pool.not_dropped()
    }
    /// Frees the memory if nothing is held.
    ///
    /// # Errors
    /// Itself, if something is.
    pub fn try_free(self) -> Result<(), Self> {
        match (self.held(), layout(self.pool.shape)) {
            (0, Some(layout)) => {
                // SAFETY: allocated with this layout by `OwnedPool::new`. The last subtraction was the last touch (acquire above),
                // and no get is running (`OwnedPool::close`).
                unsafe { dealloc(self.pool.base.as_ptr(), layout) };
                Ok(())
            }
            _ => Err(self),
        }
    }
}

fn layout(shape: Shape) -> Option<Layout> {
    Layout::from_size_align(shape.bytes(), ALIGN).ok()
}
