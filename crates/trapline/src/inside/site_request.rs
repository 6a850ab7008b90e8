//! What is patched where: the values between what is registered and what is written.
//!
//! In: sites, each with a mapping of its file and what must be done there. Out: groups of sites that belong
//! together, because they share bytes or because one site needs all of them. Planning and placing a batch
//! depends on the processor (`place` in the twin folders). Does not: know consumers.

use std::sync::Arc;

use smallvec::SmallVec;
use trapline_image::FunctionIndex;
use trapline_patch::own::OwnSite;
use trapline_record::{FileId, Svma};
use trapline_runtime::probe::Probe;

use super::traps::{CalledSite, EngineTrap};
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

/// Sites that are taken out and put back together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) load: Load,
    pub(super) sites: SmallVec<[OwnSite; 1]>,
    /// Those of them that are traps, in the form that the handler uses.
    pub(super) traps: Vec<EngineTrap>,
    /// Instructions before which their stubs call consumers.
    pub(super) calls: SmallVec<[CalledSite; 1]>,
    pub(super) parts: SmallVec<[StubAction; 1]>,
    pub(super) live: bool,
}

impl Group {
    pub(super) fn new(load: Load) -> Self {
        let (sites, calls, parts) = (SmallVec::new(), SmallVec::new(), SmallVec::new());
        Self { load, sites, traps: Vec::new(), calls, parts, live: true }
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

/// Takes out groups from index `first` on that serve no site.
pub(super) fn without_parts(all: &mut Vec<Group>, first: usize) -> Vec<Group> {
    if all[first..].iter().all(|group| !group.parts.is_empty()) {
        return Vec::new();
    }
    let (kept, lost) = all.split_off(first).into_iter().partition(|group: &Group| !group.parts.is_empty());
    all.extend::<Vec<Group>>(kept);
    lost
}

/// Disjoint sets of indices.
pub(super) struct Sets(Vec<usize>);

impl Sets {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).collect())
    }
    pub(super) fn find(&mut self, of: usize) -> usize {
        let mut at = of;
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }
    pub(super) fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}
