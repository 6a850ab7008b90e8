//! What requests for a file would get in a process that does not exist.
//!
//! In: a file, requests, the traits of a common process. Out: a tactic or a refusal for each. Does not: know
//! an address space.

use crate::bounds::bounds;
use crate::codemap::CodeMap;
use crate::input::ModuleInput;
use crate::layout::DataLayout;
use crate::machine::ProcessTraits;
use crate::module::plan_module;
use crate::plan::{ModulePlan, Tactic};
use crate::refusal::Refusal;
use crate::request::{ActionRequest, LatencyInput};
use crate::space::AddressSpace;
use crate::x86_64::stub::Buckets;
use trapline_image::{Image, ImageKind};
use trapline_record::addr::Bias;
use trapline_record::trampolines::{self, Trampolines};
use trapline_record::{RemoteAddr, Svma};

/// The tactic that each of `requests` would get in a process with these traits and an empty address space. No
/// process is needed: this is what `list` and `--dry-run` show. The requests' probes are their indices; none
/// calls a consumer or records. A request with several sites gets the least preferred tactic of them. With
/// `or_trampolines`, return trampolines are used if exits cannot be found or patched, and the result shows it.
#[must_use]
pub fn preview(
    image: &Image,
    map: &CodeMap,
    traits: &ProcessTraits,
    requests: &[ActionRequest],
    or_trampolines: bool,
) -> Vec<(Result<Tactic, Refusal>, bool)> {
    let layout = DataLayout::new(&bounds(image, map, traits, requests));
    let bias = Bias(if image.kind() == ImageKind::Exec { 0 } else { 0x7f00_0000_0000 });
    let ends = image.loads().iter().map(|s| (bias.live(s.svma), bias.live(s.svma + s.memsz)));
    let mut space = AddressSpace::default();
    ends.for_each(|(start, end)| space.occupy(start, end));
    let stamps = LatencyInput {
        stamps: RemoteAddr(0x1000_0000_0000),
        shape: Default::default(),
        min_ticks: 0,
        buckets: Buckets::Log,
        outermost: false,
        go_g: None,
        or_trampolines,
        by_trampolines: false,
        leads_on: false,
        trampolines: Some(Trampolines {
            code: 0x1000_1000_0000,
            table: 0x1000_2000_0000,
            count: trampolines::USUAL,
        }),
    };
    let input = ModuleInput {
        image,
        bias,
        map,
        traits,
        space: &space,
        code_region: None,
        patched: &[],
        alone: false,
        layout: &layout,
        far: RemoteAddr(0x2000_0000_0000),
        own_page: RemoteAddr(0x3000_0000_0000),
        regions: u32::MAX,
        latency: Some(stamps),
        calls: None,
        filters: &[],
        requests,
    };
    match plan_module(&input) {
        Ok(plan) => tactics(&plan, requests.len()),
        Err(_) => {
            let at = |request: &ActionRequest| request.function.map_or(Svma(0), |f| image.function(f).start);
            requests.iter().map(|request| (Err(Refusal::Incomplete { at: at(request) }), false)).collect()
        }
    }
}

fn tactics(plan: &ModulePlan, requests: usize) -> Vec<(Result<Tactic, Refusal>, bool)> {
    let mut all: Vec<Result<Tactic, Refusal>> = vec![Ok(Tactic::Jump); requests];
    let sites = plan.patches.iter().map(|p| (p.request, p.tactic));
    for (request, tactic) in sites.chain(plan.kernel.iter().map(|k| (k.request, Tactic::Kernel))) {
        if let Some(Ok(worst)) = all.get_mut(request as usize) {
            *worst = (*worst).max(tactic);
        }
    }
    for refused in &plan.refused {
        if let Some(answer) = all.get_mut(refused.request as usize) {
            *answer = Err(refused.why.clone());
        }
    }
    let mut armed = vec![false; requests];
    for one in &plan.armed {
        if let Some(is_armed) = armed.get_mut(one.request as usize) {
            *is_armed = true;
        }
    }
    all.into_iter().zip(armed).collect()
}
