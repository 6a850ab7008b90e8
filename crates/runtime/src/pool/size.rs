//! How large a pool is: from the requested numbers to numbers of objects, offsets and bytes.
//!
//! In: CPUs, `maxactive`, bytes of an object, depth of a per-CPU magazine. Out: a checked [`PoolSize`] with its
//! layout.
//! Does not: allocate.
//!
//! | at | what |
//! |---|---|
//! | 0 | header: what the pool is, and its counts |
//! | 256 | for each CPU its magazine, then its free bitmap, |
//! | | each on 128 bytes of its own or a multiple (lines are fetched in pairs) |
//! | then | objects, each on cache lines of its own |
//!
//! ```text
//!   objects       = maxactive + cpus·depth
//!   part of CPU n = HEADER + n·cpu_stride            HEADER = 256; the bitmap is at + 128
//!   cpu_stride    = 128 + 8·words(objects)           rounded up to a multiple of 128
//!   object n      = HEADER + cpus·cpu_stride + n·object_stride
//!   object_stride = object_bytes                     rounded up to a multiple of 64
//! ```
//!
//! The size of a pool does not grow with the number of threads. Four objects of 64 bytes for each CPU (the
//! seed's guidance) take 2 KB for 2 CPUs; an area of 4 KB for each of the seed's 5,000 tasks would take 20
//! MB.

use core::fmt;

use super::{magazine, set};

/// Maximum of `maxactive`. Together with the objects in magazines, all must be numbers of 16 bits. A thread
/// finds an empty pool empty by looking at all bitmaps: five hundred words per CPU.
pub const MOST_ACTIVE: u32 = 1 << 15;
/// Maximum number of CPUs (Linux on x86-64 allows 8192 itself; objects in their magazines must have numbers,
/// too).
pub const MOST_CPUS: u32 = 8191;

const _: () = assert!(MOST_ACTIVE + MOST_CPUS * DEPTH <= magazine::MOST_OBJECTS);
/// The largest object, in bytes (objpool's limit too).
pub const MOST_BYTES: u32 = 1 << 16;
/// Default depth of a magazine: nested calls this deep cost no bus lock.
pub const DEPTH: u32 = magazine::MOST;

/// Cache lines are fetched in pairs.
const PAIR: usize = 128;
const LINE: usize = 64;
/// Bytes before the first CPU's part.
pub(super) const HEADER: usize = 2 * PAIR;

/// A pool's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolSize {
    cpus: u32,
    maxactive: u32,
    object_bytes: u32,
    depth: u32,
}

/// Why a size is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadPoolSize {
    /// Number of CPUs that was requested.
    Cpus(u32),
    /// Number of instances that was requested.
    MaxActive(u32),
    /// Size of an object that was requested, in bytes.
    ObjectBytes(u32),
    /// Depth that was requested.
    Depth(u32),
}

impl fmt::Display for BadPoolSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(n) => write!(f, "a pool for {n} CPUs: possible are 1 to {MOST_CPUS}"),
            Self::MaxActive(n) => write!(f, "maxactive {n}: possible are 1 to {MOST_ACTIVE}"),
            Self::ObjectBytes(n) => write!(f, "an object of {n} bytes: possible are 1 to {MOST_BYTES}"),
            Self::Depth(n) => write!(f, "a shelf for {n}: possible are 0 to {}", magazine::MOST),
        }
    }
}

impl core::error::Error for BadPoolSize {}

impl PoolSize {
    /// A pool from which `maxactive` objects can be taken at once, wherever the others are; without a number,
    /// [`default_maxactive`](Self::default_maxactive). `cpus` is how many can exist, not how many are up.
    ///
    /// # Errors
    /// [`BadPoolSize`] with the number that is 0 or too large.
    pub const fn new(cpus: u32, maxactive: Option<u32>, object_bytes: u32) -> Result<Self, BadPoolSize> {
        let maxactive = match maxactive {
            Some(n) => n,
            None => Self::default_maxactive(cpus),
        };
        if cpus == 0 || cpus > MOST_CPUS {
            return Err(BadPoolSize::Cpus(cpus));
        }
        if maxactive == 0 || maxactive > MOST_ACTIVE {
            return Err(BadPoolSize::MaxActive(maxactive));
        }
        if object_bytes == 0 || object_bytes > MOST_BYTES {
            return Err(BadPoolSize::ObjectBytes(object_bytes));
        }
        Ok(Self { cpus, maxactive, object_bytes, depth: DEPTH })
    }
    /// The same with magazines of another depth; 0 for none, if sequences are not available.
    ///
    /// # Errors
    /// [`BadPoolSize::Depth`].
    pub const fn with_depth(self, depth: u32) -> Result<Self, BadPoolSize> {
        if depth > magazine::MOST { Err(BadPoolSize::Depth(depth)) } else { Ok(Self { depth, ..self }) }
    }
    /// Four for each CPU: "a fair choice for both performance and memory efficiency" by the tests of the seed
    /// (Wu, linux-kernel, 2021-07-06). Functions that sleep, and recursion, need more; the caller knows.
    #[must_use]
    pub const fn default_maxactive(cpus: u32) -> u32 {
        let n = cpus.saturating_mul(4);
        if n > MOST_ACTIVE { MOST_ACTIVE } else { n }
    }
    /// Number of CPUs with a magazine and a bitmap.
    #[must_use]
    pub const fn cpus(&self) -> u32 {
        self.cpus
    }
    /// Number of objects that can be taken at once, wherever the others are.
    #[must_use]
    pub const fn maxactive(&self) -> u32 {
        self.maxactive
    }
    /// Bytes of an object that its holder may use.
    #[must_use]
    pub const fn object_bytes(&self) -> u32 {
        self.object_bytes
    }
    /// Number of objects that a magazine can hold.
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }
    /// Number of objects; some may be in every magazine.
    #[must_use]
    pub const fn objects(&self) -> u32 {
        self.maxactive + self.cpus * self.depth
    }
    /// Size of the whole pool in bytes. On 96 CPUs with `maxactive` 384 and objects of 64 bytes: 72 KiB.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.objects_at() + self.objects() as usize * self.object_stride()
    }
    /// Number of words in a CPU's bitmap.
    pub(super) const fn words(&self) -> usize {
        set::words(self.objects()) as usize
    }
    /// Distance from one CPU's part to the next one's, in bytes.
    pub(super) const fn cpu_stride(&self) -> usize {
        PAIR + (self.words() * 8).next_multiple_of(PAIR)
    }
    /// Offset of the bitmap in a CPU's part, in bytes.
    #[cfg_attr(loom, expect(dead_code, reason = "models have no memory to lay out"))]
    pub(super) const SET: usize = PAIR;
    pub(super) const fn objects_at(&self) -> usize {
        HEADER + self.cpus as usize * self.cpu_stride()
    }
    pub(super) const fn object_stride(&self) -> usize {
        (self.object_bytes as usize).next_multiple_of(LINE)
    }
}
