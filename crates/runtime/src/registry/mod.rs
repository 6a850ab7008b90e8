//! (file, offset) → probe.
//!
//! In: sites, one change at a time; the site of a hit. Out: the probe there, if there is one. Invariants:
//! REG-1 a site has at most one probe. REG-2 a probe that is found is alive for as long as the hit is inside.
//! TAB-1, TAB-2.
//! Does not: know where files are mapped (`regions`), or own probes.
//!
//! A site is one word, so that a lookup compares one word: the file's number, given once by [`Files`] and
//! never again, and the offset. A number outlives the file. If an inode is used again for another file, the
//! same (device, inode) would lead to the old number, since no number is forgotten; so the code that
//! registers compares the file itself.
//!
//! The protocol is that of `table`: hits that began before a probe was removed still find it, until a grace
//! period has ended. Such a hit calls the consumers in the probe's list as of then: none, if the list was
//! emptied first.

mod files;

pub use files::{FileNumber, Files};

use core::num::NonZeroU64;
use core::ptr::NonNull;

use trapline_record::{FileOffset, RemoteAddr};

use crate::epoch::{Inside, Writer};
use crate::probe::Probe;
use crate::regions::{Regions, Retry};
use crate::table::Table;

/// Bits of a site for the offset: files up to 1 TiB.
const OFFSET_BITS: u32 = 40;

/// (file, offset) as one word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileSite(NonZeroU64);

/// Why (file, offset) cannot be a site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadSite {
    /// Offsets end at 2^40.
    OffsetTooLarge {
        /// The offset.
        offset: FileOffset,
    },
    /// 2^24 − 1 files have numbers.
    TooManyFiles,
}

impl core::fmt::Display for BadSite {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::OffsetTooLarge { offset } => {
                write!(f, "offset {offset}: probes end at {:#x}", 1_u64 << OFFSET_BITS)
            }
            Self::TooManyFiles => {
                write!(f, "{} files have probes or were mapped: no more numbers", FileNumber::MAX)
            }
        }
    }
}

impl core::error::Error for BadSite {}

impl FileSite {
    /// The site of a file's number and an offset in it.
    ///
    /// # Errors
    /// The offset is too large.
    #[inline]
    pub const fn new(file: FileNumber, offset: FileOffset) -> Result<Self, BadSite> {
        match NonZeroU64::new((file.get() as u64) << OFFSET_BITS | offset.0) {
            Some(word) if offset.0 >> OFFSET_BITS == 0 => Ok(Self(word)),
            _ => Err(BadSite::OffsetTooLarge { offset }),
        }
    }
}

/// All probes of a process.
#[derive(Debug)]
pub struct Registry(Table);

impl Default for Registry {
    fn default() -> Self {
        Self(Table::new(if cfg!(loom) { 1 } else { 64 }))
    }
}

impl Registry {
    /// The probe at a site.
    #[must_use]
    #[inline]
    pub fn find<'a>(&self, inside: &'a Inside<'_>, site: FileSite) -> Option<&'a Probe> {
        let probe = self.0.get(inside, site.0)?;
        // SAFETY: `put`'s caller keeps the probe until a grace period has ended after it was removed; this
        // hit is inside for 'a.
        Some(unsafe { &*(probe.get() as *const Probe) })
    }
    /// The probe at an address, for a trap. The region is validated before the registry is read. That is
    /// enough: a file's number and a site's meaning never change, so the answer was true when the region was.
    ///
    /// # Errors
    /// The region there was changing.
    #[inline]
    pub fn at<'a>(
        &self,
        regions: &Regions,
        inside: &'a Inside<'_>,
        addr: RemoteAddr,
    ) -> Result<Option<&'a Probe>, Retry> {
        let site = regions.find(inside, addr)?.and_then(|found| found.site());
        Ok(site.and_then(|site| self.find(inside, site)))
    }
    /// Puts a probe at a site, in place of any other.
    ///
    /// # Safety
    /// The probe is neither moved nor freed until it was removed, or replaced, and a grace period has ended.
    pub unsafe fn put(&self, writer: &mut Writer, site: FileSite, probe: NonNull<Probe>) {
        self.0.set(writer, site.0, probe.as_ptr() as u64);
    }
    /// Removes a site's probe.
    pub fn take_out(&self, writer: &mut Writer, site: FileSite) {
        self.0.set(writer, site.0, 0);
    }
}
