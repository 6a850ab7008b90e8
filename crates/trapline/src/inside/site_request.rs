//! What is to be patched where: the values between what is registered and what is written.
//!
//! In: sites, each with a mapping of its file and what must be done there. Out: values. Planning and placing
//! a batch of them depends on the processor (`patch_sites` in the twin folders). Does not: know consumers.

use std::sync::Arc;

use trapline_image::FunctionIndex;
use trapline_record::{FileId, Svma};
use trapline_runtime::probe::Probe;

use crate::files::ModuleFile;

/// A mapping of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Load {
    pub(super) file: FileId,
    pub(super) bias: u64,
}

/// What the stubs of a site do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StubAction {
    pub(super) probed_site: u32,
    /// Call consumers at the site itself.
    pub(super) entry: bool,
    /// Call consumers at its function's returns.
    pub(super) returns: bool,
    /// The function may be armed: its returns are seen by return trampolines.
    pub(super) armed: bool,
    /// Save extended state from the start; otherwise the gate saves it when a consumer needs it.
    pub(super) saves: bool,
    /// No consumer is called at the site itself, which is a function's entry. If there is one after all, the
    /// gate finds out.
    pub(super) only_returns: bool,
    /// Reach the site itself by a trap.
    pub(super) entry_traps: bool,
    /// Reach returns by traps.
    pub(super) exits_trap: bool,
}

impl StubAction {
    /// Whether it does what is needed at the site itself.
    pub(super) const fn serves_entry(&self, need: &Self) -> bool {
        self.probed_site == need.probed_site
            && self.entry
            && (self.entry_traps || !need.entry_traps)
            && (self.armed || !need.armed)
    }
    /// Whether it does what is needed at returns.
    pub(super) const fn serves_returns(&self, need: &Self) -> bool {
        self.probed_site == need.probed_site && self.returns && (self.exits_trap || !need.exits_trap)
    }
}

/// A site in one mapping that is to be patched.
#[derive(Clone, Debug)]
pub(super) struct SiteRequest {
    pub(super) load: Load,
    pub(super) part: StubAction,
    pub(super) file: Arc<ModuleFile>,
    pub(super) at: Svma,
    pub(super) function: Option<FunctionIndex>,
    pub(super) probe: &'static Probe,
}
