//! A site of our own process, as a value.

use trapline_plan::{PatchRole, Tactic};
use trapline_record::RemoteAddr;
use trapline_record::journal::Entry;

use crate::install::prepared::PreparedSite;
use crate::native::cpu::proven;
use crate::native::traps::is_staged;

/// A site of our own process, as it was planned: enough to take it out and to put it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnSite {
    /// Index of its module in the request.
    pub module: u32,
    /// Index in its module of the first request that it serves.
    pub request: u32,
    /// What the patch is for.
    pub role: PatchRole,
    /// How the site leads to its stub.
    pub tactic: Tactic,
    /// Where its stub begins.
    pub head: RemoteAddr,
    /// Address and bytes.
    pub entry: Entry,
    /// Index of its segment.
    pub(super) segment: u32,
}

impl OwnSite {
    /// A planned site, in a segment.
    pub(super) fn of(site: &PreparedSite, segment: u32) -> Self {
        let (patch, entry) = (&site.patch, site.entry());
        Self {
            module: site.module,
            request: patch.request,
            role: patch.role,
            tactic: patch.tactic,
            head: patch.head,
            entry,
            segment,
        }
    }
    /// Whether an int3 may stand at its head.
    pub(super) fn may_trap(&self) -> bool {
        self.tactic == Tactic::Trap || is_staged(&self.entry, proven().words)
    }
    /// Address of its first byte, and the address behind its last one.
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.entry.addr.0, self.entry.addr.0 + u64::from(self.entry.len))
    }
}
