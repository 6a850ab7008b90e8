//! A module's plan, put together.

use crate::codemap::CodeMap;
use crate::layout::DataCounts;
use crate::plan::{ModulePlan, Tactic};
use crate::refusal::{PlanError, Refusal};
use crate::request::{ModuleInput, ProcessTraits, Role, Want};
use trapline_image::{FunctionIndex, Image};

/// Upper bounds for [`DataCounts`]: patches and guards from the map, counters and latency areas from the highest index
/// in `wants`, lines from `traits`.
#[must_use]
pub fn bounds(image: &Image, map: &CodeMap, traits: &ProcessTraits, wants: &[Want]) -> DataCounts {
    let _ = (image, map, traits, wants);
    todo!()
}

/// Plans all wants of one module.
///
/// # Errors
/// [`PlanError`] when nothing at all can be planned; what fails for one want is in [`ModulePlan::refused`].
pub fn plan_module(input: &ModuleInput<'_>) -> Result<ModulePlan, PlanError> {
    let _ = input;
    todo!()
}

/// The tactic that each of `functions` would get in a process with these traits and an empty address space, without any
/// process: what `list` and `--dry-run` show. `role` is one of `CountEntry`, `CountExits`, `Latency`; the tactic is the
/// least preferred of the function's sites.
#[must_use]
pub fn preview(
    image: &Image,
    map: &CodeMap,
    traits: &ProcessTraits,
    functions: &[FunctionIndex],
    role: Role,
) -> Vec<Result<Tactic, Refusal>> {
    let _ = (image, map, traits, functions, role);
    todo!()
}
