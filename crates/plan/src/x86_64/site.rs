//! One patched site: which instructions are displaced, which actions run between them, and how a thread gets
//! to the stub.
//!
//! In: nothing; the planner makes these values. Out: plain values, and what follows from them.

use super::action::PlacedAction;
use super::jump::JUMP;
use super::pun::Pun;
use crate::plan::{PatchRole, Tactic};
use smallvec::SmallVec;
use trapline_insn::x86_64::{Insn, faults_on_register};
use trapline_record::Svma;

/// The request that a site is named after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    /// Index of the request.
    pub(crate) request: u32,
    pub(crate) probe: u32,
    pub(crate) role: PatchRole,
}

/// How a thread gets from the site to the stub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// `jmp rel32` by the module's displacement K.
    Jump,
    /// `jmp rel8` to an island at this address.
    Island(Svma),
    /// `jmp rel32`, of which some bytes are the following code's.
    Pun(Pun),
    /// `int3`, from which the guard table leads to the stub.
    Trap,
}

/// One patched site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PatchedSite {
    pub(crate) owner: Owner,
    pub(crate) start: Svma,
    /// The displaced instructions, at stated addresses.
    pub(crate) insns: SmallVec<[Insn; 3]>,
    /// Actions, in the order in which they run.
    pub(crate) actions: SmallVec<[PlacedAction; 1]>,
    /// Number of changed bytes.
    pub(crate) changed: u64,
    pub(crate) reach: Reach,
    /// As [`Patch::faults_before`](crate::Patch::faults_before).
    pub(crate) faults_before: bool,
}

/// All sites of a module. They stay in the lists in which two threads planned them: together they take megabytes.
#[derive(Debug, Default)]
pub(crate) struct AllSites {
    first: Vec<PatchedSite>,
    second: Vec<PatchedSite>,
}

impl AllSites {
    pub(crate) const fn new(first: Vec<PatchedSite>, second: Vec<PatchedSite>) -> Self {
        Self { first, second }
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PatchedSite> {
        self.first.iter().chain(&self.second)
    }
    /// A site by its place in [`iter`](Self::iter).
    pub(crate) fn get(&self, nth: u32) -> Option<&PatchedSite> {
        let nth = nth as usize;
        self.first.get(nth).or_else(|| self.second.get(nth.checked_sub(self.first.len())?))
    }
    /// The same in one list.
    pub(crate) fn joined(mut self) -> Vec<PatchedSite> {
        self.first.append(&mut self.second);
        self.first
    }
}

impl From<Vec<PatchedSite>> for AllSites {
    fn from(all: Vec<PatchedSite>) -> Self {
        Self::new(all, Vec::new())
    }
}

impl PatchedSite {
    /// First byte behind the displaced instructions.
    pub(crate) fn code_end(&self) -> Svma {
        Svma(self.insns.last().map_or(self.start.0, Insn::end))
    }
    /// First byte behind everything that must stay as planned.
    pub(crate) fn end(&self) -> Svma {
        let taken = if matches!(self.reach, Reach::Pun(..)) { JUMP } else { self.changed };
        self.code_end().max(self.start + taken)
    }
    /// Whether an instruction that runs as a copy may fault. The code that a detour copies is not examined:
    /// it is assumed to.
    pub(crate) fn may_fault(&self) -> bool {
        self.insns.iter().any(faults_on_register) || self.actions.iter().any(|placed| placed.detour.is_some())
    }
    pub(crate) fn overlaps(&self, start: Svma, end: Svma) -> bool {
        self.start < end && start < self.end()
    }
    pub(crate) fn tactic(&self) -> Tactic {
        match self.reach {
            Reach::Jump => Tactic::Jump,
            Reach::Island(_) => Tactic::Short,
            Reach::Pun(..) => Tactic::Pun,
            Reach::Trap => Tactic::Trap,
        }
    }
    /// Removes what one request asked for. Returns whether any action is left here.
    pub(crate) fn forget(&mut self, request: u32, probe_of: impl Fn(u32) -> u32) -> bool {
        self.actions.retain(|a| a.request != request);
        let Some(first) = self.actions.first() else { return false };
        if self.owner.request == request {
            self.owner.request = first.request;
            self.owner.probe = probe_of(first.request);
        }
        true
    }
    /// Adds an action behind those of the same moment. Returns its place among the actions.
    pub(crate) fn add(&mut self, placed: PlacedAction) -> usize {
        let key = |a: &PlacedAction| (a.at, a.moment());
        let place = self.actions.partition_point(|other| key(other) <= key(&placed));
        self.actions.insert(place, placed);
        place
    }
    /// Bit `n`: an instruction that can run starts at byte `n` of the changed bytes; the first one is not
    /// counted.
    pub(crate) fn starts(&self) -> u8 {
        let inside = self.insns.iter().skip(1).map(|i| i.addr - self.start.0);
        inside.take_while(|&at| at < self.changed).fold(0, |starts, at| starts | 1 << at)
    }
}
