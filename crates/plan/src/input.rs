//! Everything that the plan of one module depends on.
//!
//! In: a file, its code map, pictures of the process. Out: one value for each processor's planner.
//! Does not: decide anything.

use crate::calls::CallInput;
use crate::codemap::CodeMap;
use crate::filter::TargetFilter;
use crate::layout::DataLayout;
use crate::machine::ProcessTraits;
use crate::request::{ActionRequest, LatencyInput};
use crate::space::{AddressSpace, CodeRegion};
use trapline_image::Image;
use trapline_record::addr::Bias;
use trapline_record::{RemoteAddr, Svma};

/// Everything that the plan of a module depends on.
#[derive(Clone, Copy, Debug)]
pub struct ModuleInput<'a> {
    /// The file.
    pub image: &'a Image,
    /// Difference between its live and its stated addresses.
    pub bias: Bias,
    /// The module's branch targets; must cover the requested functions.
    pub map: &'a CodeMap,
    /// What the process and its CPU allow.
    pub traits: &'a ProcessTraits,
    /// What is mapped, including the spaces that other modules got already.
    pub space: &'a AddressSpace,
    /// The module's space, if it has one. Otherwise one is chosen for these requests alone.
    pub code_region: Option<CodeRegion>,
    /// Ranges of the module that earlier patches need, in order and disjoint. No island is placed there.
    pub patched: &'a [(Svma, Svma)],
    /// Plan on this thread only; create no helper threads.
    pub alone: bool,
    /// Layout of the segment's data.
    pub layout: &'a DataLayout,
    /// Where the segment's far part will be mapped.
    pub far: RemoteAddr,
    /// Where the page will be mapped that each process has for itself; required if a program asks for the process' number
    /// ([`trapline_record::sharers`]).
    pub own_page: RemoteAddr,
    /// How many separate small code regions the module may take.
    pub regions: u32,
    /// Required if a request [`is_timed`](crate::Action::is_timed), or is a filtered
    /// [`Action::Record`](crate::Action::Record) with returns.
    pub latency: Option<LatencyInput>,
    /// Required if a request calls a consumer.
    pub calls: Option<CallInput<'a>>,
    /// Filters, indexed by [`ActionRequest::probe`]. A request without one, or behind the end, passes all
    /// hits.
    pub filters: &'a [Option<TargetFilter>],
    /// The requests.
    pub requests: &'a [ActionRequest],
}

impl<'a> ModuleInput<'a> {
    /// The filter of a probe's hits.
    pub(crate) fn filter(&self, probe: u32) -> Option<&'a TargetFilter> {
        self.filters.get(probe as usize).and_then(Option::as_ref)
    }
}
