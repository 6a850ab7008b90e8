//! Chooses where a batch of our own process goes.
//!
//! In: a request. Out: the same, prepared, and the code region that it goes into. Does not: map or write.
//!
//! There are some hundred displacements, but any number of single registrations. The first batches of a module
//! have regions of their own, which saves their hits a jump; so have large ones, and those with punned jumps.
//! Then the module gets a region that its batches share: a mirrored range for the whole text, with room for
//! [`SITES`]. If there is no space within reach for either, sites become traps: their stubs may lie anywhere.

use trapline_plan::{
    CallInput, Callee, CodeRegion, DataCounts, DataLayout, PlanError, bounds, find_code_region,
    room_for_calls,
};
use trapline_tracee::Process;

use super::code_regions::{CodeRegions, RegionChoice};
use super::guards::has_room;
use crate::batches::Batches;
use crate::error::PatchError;
use crate::install::layout::counts;
use crate::install::prepared::Prepared;
use crate::install::work::Work;
use crate::request::{Module, Request};

/// Number of sites for which a region that batches share has room.
const SITES: u32 = 4096;
/// A batch that may have more sites than this gets a space of its own.
const LARGE: u32 = 1024;
/// Number of batches of a module that get spaces of their own before it gets one that they share.
const MOST_OWN_SPACES: u32 = 8;
/// Number of guards in such a region, enough for both tables.
const GUARDS: u32 = 2 * 6 * 2 * SITES;

/// What a choice depends on.
pub(super) struct Planner<'a> {
    pub(super) process: &'a Process,
    pub(super) batches: &'a Batches,
    pub(super) regions: &'a CodeRegions,
}

impl Planner<'_> {
    /// Plans the request, and decides where it goes.
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
        let may_share = counts.patches / 2 <= LARGE;
        if may_share
            && self.regions.own_spaces(load) >= MOST_OWN_SPACES
            && let Some(found) = self.share(request, module, &counts, work)?
        {
            return Ok(found);
        }
        match self.attempt(request, work, None) {
            Err(error) if is_full(&error) => {
                if may_share && let Some(found) = self.share(request, module, &counts, work)? {
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
        work.prepare(self.batches, self.process, request)
    }
    /// Plans for a region that has room and is shared, or for a new one.
    fn share(
        &self,
        request: &Request<'_>,
        module: &Module<'_>,
        counts: &DataCounts,
        work: &mut Work,
    ) -> Result<Option<(Prepared, RegionChoice)>, PatchError> {
        let load = (module.file, module.bias.0);
        for (index, used) in self.regions.shared(load) {
            let segment = &self.batches.segments[used.segment];
            let has_code = used.region.free + room_for_calls(counts) <= used.region.code.end();
            if !has_code || !has_room(segment, counts) {
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
        let layout = DataLayout::new(&self::counts(request, &work.survey));
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
