//! Code regions into which one batch after another of a module is laid. There are some hundred
//! displacements, but any number of single registrations.
//!
//! In: a request. Out: the same, prepared, and where it goes. Invariants: HOME-1 what was laid into a region
//! is never overwritten: its stubs lie one behind the other, and a site whose jump would meet another's in
//! the mirrored range goes elsewhere. Does not: map or write.
//!
//! The first batches of a module have spaces of their own, which saves their hits a jump; so have large ones,
//! and those with punned jumps. Then the module gets a home: a mirrored range for the whole text, with room
//! for [`SITES`]. If there is no space within reach for either, sites become traps, whose stubs may lie
//! anywhere.

use std::collections::{BTreeSet, HashMap};

use trapline_plan::{
    CallInput, Callee, CodeRegion, DataCounts, DataLayout, ModulePlan, PlanError, bounds, find_code_region,
    room_for_calls,
};
use trapline_tracee::FileId;

use super::Own;
use crate::error::PatchError;
use crate::install::attach::Work;
use crate::install::prepare::{Prepared, layout, prepare};
use crate::request::{Module, Request};

/// Number of sites for which a home has room.
const SITES: u32 = 4096;
/// A batch that may have more sites than this gets a space of its own.
const LARGE: u32 = 1024;
/// Number of batches of a module that get spaces of their own before it gets a home.
const MOST_OWN_SPACES: u32 = 8;
/// Number of guards in a home, enough for both tables.
const GUARDS: u32 = 2 * 6 * 2 * SITES;

/// A module at its load address.
type Load = (FileId, u64);

#[derive(Debug)]
struct UsedRegion {
    load: Load,
    region: CodeRegion,
    /// Index of the home's segment.
    segment: usize,
    /// Addresses of the jumps in its mirrored range.
    stub_starts: BTreeSet<u64>,
}

/// All homes.
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
    /// Into a new home.
    New(Load, CodeRegion),
    /// Into an existing home, by its index.
    Existing(usize),
}

impl CodeRegions {
    /// Notes what was mapped, or added to a home. `segment` is the index of its segment.
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
    pub(super) fn segment(&self, index: usize) -> usize {
        self.all[index].segment
    }
}

/// Addresses of a plan's jumps in the mirrored range.
fn stub_starts(plan: &ModulePlan, region: &CodeRegion) -> impl Iterator<Item = u64> {
    let end = region.mirror_end;
    plan.chunks.iter().map(|chunk| chunk.addr).filter(move |addr| *addr < end).map(|addr| addr.0)
}

impl UsedRegion {
    /// Whether nothing of the plan lies over what is there (HOME-1).
    fn takes(&self, plan: &ModulePlan) -> bool {
        const JUMP: u64 = 5;
        let mut all = stub_starts(plan, &self.region);
        plan.pun_regions.is_empty()
            && all.all(|at| self.stub_starts.range(at.saturating_sub(JUMP - 1)..at + JUMP).next().is_none())
    }
}

impl Own {
    /// Plans a request, and decides where it goes.
    pub(super) fn prepare(
        &self,
        request: &Request<'_>,
        work: &mut Work,
    ) -> Result<(Prepared, RegionChoice), PatchError> {
        let [module] = request.modules else {
            return Ok((self.attempt(request, work, None)?, RegionChoice::OwnSpace(None)));
        };
        let load = (module.file, module.bias.0);
        let counts = bounds(module.image, module.map, &work.survey.traits, module.requests);
        let may_be_at_home = counts.patches / 2 <= LARGE;
        if may_be_at_home
            && self.code_regions.own_space.get(&load).is_some_and(|own_space| *own_space >= MOST_OWN_SPACES)
            && let Some(found) = self.at_home(request, module, &counts, work)?
        {
            return Ok(found);
        }
        match self.attempt(request, work, None) {
            Err(error) if is_full(&error) => {
                if may_be_at_home && let Some(found) = self.at_home(request, module, &counts, work)? {
                    return Ok(found);
                }
                let prepared = self.by_traps(request, &counts, work)?.ok_or(error)?;
                Ok((prepared, RegionChoice::OwnSpace(None)))
            }
            other => Ok((other?, RegionChoice::OwnSpace(Some(load)))),
        }
    }
    fn attempt(
        &self,
        request: &Request<'_>,
        work: &mut Work,
        region: Option<(CodeRegion, DataLayout)>,
    ) -> Result<Prepared, PatchError> {
        // They are of an earlier attempt.
        work.report.refused.clear();
        work.report.kernel.clear();
        work.survey.code_region = region;
        prepare(&self.process, request, &mut work.survey, self.attached.before(), &mut work.report)
    }
    /// Plans for a home that has room, or for a new one.
    fn at_home(
        &self,
        request: &Request<'_>,
        module: &Module<'_>,
        counts: &DataCounts,
        work: &mut Work,
    ) -> Result<Option<(Prepared, RegionChoice)>, PatchError> {
        let load = (module.file, module.bias.0);
        for (index, used) in
            self.code_regions.all.iter().enumerate().rev().filter(|(_, used)| used.load == load)
        {
            let segment = &self.attached.segments[used.segment];
            let has_code = used.region.free + room_for_calls(counts) <= used.region.code.end();
            if !has_code || !segment.has_room(counts) {
                continue;
            }
            let prepared = self.attempt(request, work, Some((used.region, segment.layout)))?;
            if prepared.plans.iter().all(|plan| used.takes(plan)) {
                return Ok(Some((prepared, RegionChoice::Existing(index))));
            }
        }
        let room =
            DataCounts { patches: 2 * SITES, guards: GUARDS, lines: counts.lines, ..DataCounts::default() };
        let stubs = room_for_calls(&DataCounts { patches: 2 * SITES, ..DataCounts::default() });
        let layout = DataLayout::new(&room);
        let found = find_code_region(module.image, module.bias, &work.survey.space, layout.near, stubs);
        let Ok(region) = found else { return Ok(None) };
        let prepared = self.attempt(request, work, Some((region, layout)))?;
        let takes = prepared.plans.iter().all(|plan| plan.pun_regions.is_empty());
        Ok(takes.then_some((prepared, RegionChoice::New(load, region))))
    }
    /// Plans traps, with their stubs wherever there is room.
    fn by_traps(
        &self,
        request: &Request<'_>,
        counts: &DataCounts,
        work: &mut Work,
    ) -> Result<Option<Prepared>, PatchError> {
        let Some(calls) = request.calls else { return Ok(None) };
        let layout = layout(request, &work.survey);
        let region = CodeRegion::anywhere(&work.survey.space, layout.near, room_for_calls(counts));
        let Some(region) = region else { return Ok(None) };
        let callees: Vec<Callee> =
            calls.callees.iter().map(|callee| Callee { by_trap: true, ..*callee }).collect();
        let request = Request { calls: Some(CallInput { callees: &callees, ..calls }), ..*request };
        self.attempt(&request, work, Some((region, layout))).map(Some)
    }
}

fn is_full(error: &PatchError) -> bool {
    matches!(error, PatchError::Plan { source: PlanError::NoSpace { .. }, .. })
}
