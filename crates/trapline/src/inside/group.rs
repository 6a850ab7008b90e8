//! Sites that are taken out and put back together.
//!
//! In: sites that were written, by the site requests that they serve. Out: groups of sites that belong
//! together, because they share bytes or because one site needs all of them. Does not: know consumers, or
//! write.

use smallvec::SmallVec;
use trapline_patch::own::OwnSite;

use super::site_request::{Load, StubAction};
use super::traps::{CalledSite, EngineTrap};

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
