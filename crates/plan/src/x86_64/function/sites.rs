//! The sites of all functions that were planned so far, and an index of those of the current one.
//!
//! In: sites, changes of sites. Out: the site at a place, without a look at all of them: a function may have thousands.
//! Invariant: windows of one function are disjoint, so of those that begin before a place only the last can reach it.
//! What was done since a mark can be undone.
//! Does not: choose windows.

use crate::x86_64::action::PlacedAction;
use crate::x86_64::site::PatchedSite;
use trapline_record::Svma;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    all: Vec<PatchedSite>,
    /// Index in `all` of the current function's first.
    first: usize,
    /// Starts of the current function's, with their indexes in `all`; sorted.
    starts: Vec<(Svma, usize)>,
    /// What undoes each change of the current function's sites, in order.
    undo: Vec<Undo>,
}

/// Undoes a change of the site with this index.
#[derive(Debug)]
enum Undo {
    /// Removes the action at this place. A site may have a million actions, so it is not copied for each.
    Remove(usize, usize),
    /// It is as it was.
    PutBack(usize, Box<PatchedSite>),
}

/// A state to return to, of the current function.
#[derive(Clone, Copy, Debug)]
pub(super) struct SitesMark {
    all: usize,
    undo: usize,
}

impl Sites {
    /// None yet, with room for so many.
    pub(crate) fn with_capacity(sites: usize) -> Self {
        Self { all: Vec::with_capacity(sites), ..Self::default() }
    }
    /// All sites, function by function.
    pub(crate) fn into_all(self) -> Vec<PatchedSite> {
        self.all
    }
    pub(crate) fn all(&self) -> &[PatchedSite] {
        &self.all
    }
    /// The site that was planned last.
    pub(crate) fn last(&self) -> Option<&PatchedSite> {
        self.all.last()
    }
    /// From here on another function's sites come.
    pub(super) fn begin_function(&mut self) {
        self.first = self.all.len();
        self.starts.clear();
        self.undo.clear();
    }
    /// The current function's sites.
    pub(super) fn current(&self) -> &[PatchedSite] {
        &self.all[self.first..]
    }

    pub(super) fn push(&mut self, site: PatchedSite) {
        self.index(site.start, self.all.len());
        self.all.push(site);
    }
    fn index(&mut self, start: Svma, at: usize) {
        let place = self.starts.partition_point(|other| other.0 < start);
        self.starts.insert(place, (start, at));
    }
    /// Adds an action to a site.
    pub(super) fn add(&mut self, index: usize, placed: PlacedAction) {
        let place = self.all[index].add(placed);
        self.undo.push(Undo::Remove(index, place));
    }
    /// Changes a site, but not where it starts.
    pub(super) fn change(&mut self, index: usize, change: impl FnOnce(&mut PatchedSite)) {
        self.undo.push(Undo::PutBack(index, Box::new(self.all[index].clone())));
        change(&mut self.all[index]);
    }

    /// Index of the last site that starts before `end`.
    pub(super) fn before(&self, end: Svma) -> Option<usize> {
        let place = self.starts.partition_point(|start| start.0 < end);
        place.checked_sub(1).map(|place| self.starts[place].1)
    }
    /// A site whose window has bytes in `start..end`.
    pub(super) fn over(&self, start: Svma, end: Svma) -> Option<&PatchedSite> {
        self.before(end).map(|index| &self.all[index]).filter(|site| site.overlaps(start, end))
    }
    /// Index of the site that displaces the instruction at `at`.
    pub(super) fn with(&self, at: Svma) -> Option<usize> {
        self.before(at + 1).filter(|&index| self.all[index].insns.iter().any(|insn| insn.addr == at.0))
    }
    pub(super) fn get(&self, index: usize) -> &PatchedSite {
        &self.all[index]
    }

    pub(super) fn mark(&self) -> SitesMark {
        SitesMark { all: self.all.len(), undo: self.undo.len() }
    }
    pub(super) fn roll_back(&mut self, to: SitesMark) {
        while self.undo.len() > to.undo
            && let Some(undo) = self.undo.pop()
        {
            match undo {
                Undo::Remove(index, place) => drop(self.all[index].actions.remove(place)),
                Undo::PutBack(index, site) => self.all[index] = *site,
            }
        }
        self.all.truncate(to.all);
        self.starts.retain(|start| start.1 < to.all);
    }
}

#[cfg(test)]
mod tests {
    use super::Sites;
    use crate::plan::PatchRole;
    use crate::request::Hold;
    use crate::x86_64::action::{PlacedAction, SiteAction, When};
    use crate::x86_64::jump::JUMP;
    use crate::x86_64::site::{Owner, PatchedSite, Reach};
    use smallvec::SmallVec;
    use trapline_record::Svma;

    fn site(start: u64) -> PatchedSite {
        PatchedSite {
            owner: Owner { request: 0, probe: 0, role: PatchRole::Entry },
            start: Svma(start),
            insns: SmallVec::from_iter(trapline_insn::x86_64::sweep(&[0x31, 0xC0, 0x31, 0xDB, 0x90], start)),
            actions: SmallVec::new(),
            changed: JUMP,
            reach: Reach::Jump,
            faults_before: false,
        }
    }

    fn placed(at: u64) -> PlacedAction {
        PlacedAction {
            at: Svma(at),
            when: When::Before,
            action: SiteAction::Hold(Hold::Prctl),
            dead: Default::default(),
            request: 0,
            lowered: 0,
            detour: None,
        }
    }

    #[test]
    fn a_site_is_found_by_its_bytes_and_changes_are_undone() {
        let mut sites = Sites::with_capacity(4);
        sites.push(site(0x100));
        sites.begin_function();
        [0x40, 0x20, 0x30].into_iter().for_each(|start| sites.push(site(start)));
        let over = |sites: &Sites, start, end| sites.over(Svma(start), Svma(end)).map(|site| site.start.0);
        assert_eq!(over(&sites, 0x24, 0x30), Some(0x20));
        assert_eq!(
            [over(&sites, 0x25, 0x30), over(&sites, 0x10, 0x20), over(&sites, 0x100, 0x105)],
            [None; 3]
        );
        // Instructions begin at bytes 0, 2 and 4.
        assert_eq!([0x22, 0x24, 0x23].map(|at| sites.with(Svma(at))), [Some(2), Some(2), None]);

        let (mark, before) = (sites.mark(), sites.current().to_vec());
        sites.change(2, |site| site.changed = 2);
        sites.push(site(0x28));
        sites.change(4, |site| site.changed = 1);
        sites.change(2, |site| site.changed = 3);
        [0x24, 0x22, 0x24].into_iter().for_each(|at| sites.add(2, placed(at)));
        assert_eq!(
            sites.get(2).actions.iter().map(|placed| placed.at.0).collect::<Vec<_>>(),
            [0x22, 0x24, 0x24]
        );
        assert_eq!((sites.current().len(), sites.with(Svma(0x28))), (4, Some(4)));
        // A site to which actions are added, and nothing else.
        [0x32, 0x30].into_iter().for_each(|at| sites.add(3, placed(at)));
        sites.roll_back(mark);
        assert_eq!((sites.current(), sites.with(Svma(0x28))), (&before[..], None));
    }
}
