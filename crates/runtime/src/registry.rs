//! (file, offset) → probe.
//!
//! In: sites, one change at a time; the site of a hit. Out: the probe there, if there is one. Invariants:
//! REG-1 a site has at most one probe. REG-2 a probe that is found is alive for as long as the hit is inside.
//! TAB-1, TAB-2.
//! Does not: know where files are mapped (`regions`), or own probes.
//!
//! The protocol is that of `table`: hits that began before a probe was removed still find it, until a grace
//! period has ended. Such a hit calls the consumers in the probe's list as of then: none, if the list was
//! emptied first.

pub use crate::file_site::{BadSite, FileNumber, FileSite, Files};

use core::ptr::NonNull;

use trapline_record::RemoteAddr;

use crate::epoch::{Inside, Writer};
use crate::probe::Probe;
use crate::regions::{Regions, Retry};
use crate::table::Table;

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
