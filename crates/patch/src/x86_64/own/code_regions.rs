//! Code regions into which one batch after another of a module is laid.
//!
//! In: batches as they are laid. Out: which regions a module has, and whether a plan fits into one. Invariants:
//! APPEND-1 what was laid into a region is never overwritten: its stubs lie one behind the other, and a site
//! goes elsewhere if its jump would meet another's in the mirrored range. Does not: decide where a batch goes
//! (see `choice`), map, or write.

use std::collections::{BTreeSet, HashMap};

use trapline_plan::{CodeRegion, ModulePlan};
use trapline_tracee::FileId;

/// A module at its load address.
pub(super) type Load = (FileId, u64);

#[derive(Debug)]
pub(super) struct UsedRegion {
    load: Load,
    pub(super) region: CodeRegion,
    /// Index of the region's segment.
    pub(super) segment: usize,
    /// Addresses of the jumps in its mirrored range.
    stub_starts: BTreeSet<u64>,
}

/// All code regions that batches share, and how many batches of each module have one of their own.
#[derive(Debug, Default)]
pub(super) struct CodeRegions {
    all: Vec<UsedRegion>,
    own_space: HashMap<Load, u32>,
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum RegionChoice {
    /// Into a space of its own.
    OwnSpace(Option<Load>),
    /// Into a new region, which later batches share.
    New(Load, CodeRegion),
    /// Into an existing one, by its index.
    Existing(usize),
}

impl CodeRegions {
    /// Notes what was mapped, or added to a region. `segment` is the index of its segment.
    pub(super) fn settled(&mut self, choice: RegionChoice, plans: &[ModulePlan], segment: usize) {
        let index = match choice {
            RegionChoice::OwnSpace(load) => {
                load.into_iter().for_each(|load| *self.own_space.entry(load).or_default() += 1);
                return;
            }
            RegionChoice::New(load, region) => {
                self.all.push(UsedRegion { load, region, segment, stub_starts: BTreeSet::new() });
                self.all.len() - 1
            }
            RegionChoice::Existing(index) => index,
        };
        let used = &mut self.all[index];
        for plan in plans {
            used.stub_starts.extend(stub_starts(plan, &used.region));
            used.region.free = plan.free;
        }
    }
    /// Index of the segment of a region.
    pub(super) fn segment(&self, index: usize) -> usize {
        self.all[index].segment
    }
    /// Number of batches of a module that have regions of their own.
    pub(super) fn own_spaces(&self, load: Load) -> u32 {
        self.own_space.get(&load).copied().unwrap_or(0)
    }
    /// Regions of a module that batches share, each with its index, newest first.
    pub(super) fn shared(&self, load: Load) -> impl Iterator<Item = (usize, &UsedRegion)> {
        self.all.iter().enumerate().rev().filter(move |(_, used)| used.load == load)
    }
}

/// Addresses of a plan's jumps in the mirrored range.
fn stub_starts(plan: &ModulePlan, region: &CodeRegion) -> impl Iterator<Item = u64> {
    let end = region.mirrored_end;
    plan.chunks.iter().map(|chunk| chunk.addr).filter(move |addr| *addr < end).map(|addr| addr.0)
}

impl UsedRegion {
    /// Whether nothing of the plan lies over what is there (APPEND-1).
    pub(super) fn takes(&self, plan: &ModulePlan) -> bool {
        const JUMP: u64 = 5;
        let mut all = stub_starts(plan, &self.region);
        plan.pun_regions.is_empty()
            && all.all(|at| self.stub_starts.range(at.saturating_sub(JUMP - 1)..at + JUMP).next().is_none())
    }
}
