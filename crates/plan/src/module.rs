//! Plans a module: checks the input, and hands it to its processor's planner.
//!
//! In: [`ModuleInput`]. Out: [`ModulePlan`]. Does not: decide anything about a site.

use crate::filter::TargetFilter;
use crate::input::ModuleInput;
use crate::machine::ProcessTraits;
use crate::plan::ModulePlan;
use crate::refusal::PlanError;
use crate::request::{Action, ActionRequest, LatencyInput};
use crate::unwind::TrampolineCode;
use crate::{aarch64, x86_64};
use trapline_image::{Image, Machine};
use trapline_record::counters::filtered;
use trapline_record::trampolines::Trampolines;

/// Plans all requests for one module.
///
/// # Errors
/// [`PlanError`] if nothing at all can be planned; a request that fails alone is in [`ModulePlan::refused`].
pub fn plan_module(input: &ModuleInput<'_>) -> Result<ModulePlan, PlanError> {
    check(input)?;
    match input.image.machine() {
        Machine::X86_64 => x86_64::module::plan_module(input),
        Machine::Aarch64 => aarch64::module::plan_module(input),
    }
}

/// The code of return trampolines, for all modules and later batches of a process. `image` is any of the
/// modules.
#[must_use]
pub fn trampolines_for(
    image: &Image,
    traits: &ProcessTraits,
    trampolines: Trampolines,
    input: &LatencyInput,
) -> Option<TrampolineCode> {
    match image.machine() {
        Machine::X86_64 => x86_64::lay::trampolines_for(traits, trampolines, input),
        Machine::Aarch64 => aarch64::lay::trampolines_for(traits, trampolines, input),
    }
}

/// Checks that there is a place for everything that the requests write or call.
fn check(input: &ModuleInput<'_>) -> Result<(), PlanError> {
    let decided = || {
        let filter = |w: &ActionRequest| input.filter(w.probe);
        input.requests.iter().filter_map(move |w| Some((w, filter(w)?)))
    };
    input.requests.iter().try_for_each(|request| inside_layout(input, request))?;
    decided().try_for_each(|(request, _)| {
        outside("filter's words", filtered::WORDS * request.probe + 3, input.layout.filtered.count)
    })?;
    let requested = |action| input.requests.iter().any(|w| w.action == action);
    let timed = requested(Action::Latency) || decided().any(|(request, filter)| is_marked(request, filter));
    let by_trampolines = input.latency.is_some_and(|latency| latency.by_trampolines);
    let trampolines = input.latency.and_then(|latency| latency.trampolines);
    if timed && input.latency.is_none()
        || (requested(Action::LatencyByTrampoline) || by_trampolines) && trampolines.is_none()
    {
        return Err(PlanError::NoStamps);
    }
    Ok(())
}

/// Checks that a request's callee, counter and latency area exist.
fn inside_layout(input: &ModuleInput<'_>, request: &ActionRequest) -> Result<(), PlanError> {
    if request.action.calls() {
        let callee = input.calls.and_then(|calls| calls.callees.get(request.probe as usize));
        callee.ok_or(PlanError::NoCallee { probe: request.probe })?;
    } else if request.action.counts() {
        outside("counter", request.probe, input.layout.counters.count)?;
    }
    match request.latency {
        Some(latency) => outside("latency area", latency, input.layout.latency_count),
        None => Ok(()),
    }
}

const fn outside(what: &'static str, index: u32, have: u32) -> Result<(), PlanError> {
    if index < have { Ok(()) } else { Err(PlanError::OutsideLayout { what, index, have }) }
}

/// Whether a request's entries leave something in stamp cells for their exits.
const fn is_marked(request: &ActionRequest, filter: &TargetFilter) -> bool {
    match request.action {
        Action::Tally { .. } => filter.late.is_some(),
        role => matches!(role, Action::Record { returns: true, .. }),
    }
}
