//! Whether a region can be a pool.
//!
//! In: a region's address and length. Out: [`BadRegion`] if it cannot. Does not: look into the region.

use core::fmt;
use core::ptr::NonNull;

use super::size::BadPoolSize;

/// A pool begins at a multiple of this.
pub(super) const ALIGN: usize = 128;

/// Why a region cannot be a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadRegion {
    /// The pool cannot have that shape.
    PoolSize(BadPoolSize),
    /// The region is too small.
    Small {
        /// Size of the region in bytes.
        bytes: usize,
        /// Size of the pool in bytes.
        wanted: usize,
    },
    /// It does not begin at a multiple of 128.
    Misaligned(usize),
    /// There is no pool in it.
    NoPool(u64),
    /// There was no memory of so many bytes.
    OutOfMemory(usize),
}

impl fmt::Display for BadRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PoolSize(shape) => shape.fmt(f),
            Self::Small { bytes, wanted } => write!(f, "a pool of {wanted} bytes in {bytes}"),
            Self::Misaligned(at) => write!(f, "a pool at {at:#x}: it must begin at a multiple of {ALIGN}"),
            Self::NoPool(mark) => write!(f, "no pool lies here: its mark is {mark:#x}"),
            Self::OutOfMemory(bytes) => write!(f, "no memory for a pool of {bytes} bytes"),
        }
    }
}

impl core::error::Error for BadRegion {}

impl From<BadPoolSize> for BadRegion {
    fn from(shape: BadPoolSize) -> Self {
        Self::PoolSize(shape)
    }
}

/// Checks a region for a pool of `wanted` bytes.
pub(super) fn check(region: NonNull<u8>, bytes: usize, wanted: usize) -> Result<(), BadRegion> {
    if !region.addr().get().is_multiple_of(ALIGN) {
        return Err(BadRegion::Misaligned(region.addr().get()));
    }
    if bytes < wanted { Err(BadRegion::Small { bytes, wanted }) } else { Ok(()) }
}
