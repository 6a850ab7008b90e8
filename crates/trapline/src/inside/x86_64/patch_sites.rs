//! From sites to be patched to patches: one batch, planned together.
//!
//! In: sites, each with a mapping of its file and what its stub must do. Out: groups of sites that belong
//! together, because a window is shared or because one site needs all of them; and why others could not be
//! patched. Does not: know consumers.

use std::collections::HashMap;
use std::sync::Arc;

use trapline_patch::own::{Own, OwnCall};
use trapline_patch::{Module, Options, PatchError, Request, Why};
use trapline_plan::{Action, ActionRequest, CallFunctions, CallInput, Callee, CodeMap, ExtendedState};
use trapline_record::addr::Bias;
use trapline_runtime::dispatch;
use trapline_runtime::x86_64::general;

use super::code_map::GUARDED;
use super::setting::{Setting, inlined};
use crate::inside::group::{Group, Sets};
use crate::inside::mapped_files::MappedFiles;
use crate::inside::placing::{Placing, StubCall};
use crate::inside::site_request::{Load, SiteRequest, StubAction};

impl SiteRequest {
    /// Roles of a site, each with whether it is to use a trap.
    fn actions(&self) -> impl Iterator<Item = (Action, bool)> {
        let start = self.function.map(|f| self.file.image.function(f).start);
        let StubAction { entry: has_entry, returns, entry_traps, exits_trap, armed, .. } = self.part;
        let entry = match start == Some(self.at) {
            true if armed => Action::CallArmed,
            true => Action::CallEntry,
            false => Action::CallAt(self.at),
        };
        let entry = has_entry.then_some((entry, entry_traps));
        entry.into_iter().chain(returns.then_some((Action::CallExits, exits_trap)))
    }
}

/// Patches each of the `site_requests` as a whole or not at all. New groups come after all others. Returns
/// those that are refused: their index, and why.
pub(in crate::inside) fn place(
    own: &mut Own,
    site_requests: &[SiteRequest],
    setting: Setting,
    (known, all): (&mut MappedFiles, &mut Vec<Group>),
) -> Result<Vec<(usize, Why)>, PatchError> {
    let batch = Batch::new(site_requests);
    let maps = batch.code_maps(setting.alone);
    let modules = batch.modules(&maps);
    let Setting { state, shows_originals, shadow_stack, alone } = setting;
    let request = Request {
        modules: &modules,
        go: false,
        threads: Default::default(),
        durations: Default::default(),
        options: Options { faults_are_fatal: shows_originals, alone, ..Options::default() },
        calls: Some(CallInput { functions: functions(state), callees: &batch.callees, may_trap: true }),
        filters: &[],
        unwinders: &[],
        own_code: &[],
    };
    let mut placing = Placing::new(site_requests, known, shadow_stack);
    let added = own.add(&request, &mut |calls| batch.announce(calls, &mut placing))?;

    let mut refused: HashMap<usize, Why> = HashMap::new();
    for one in added.report.refused {
        refused.entry(batch.request_of(one.module, one.request)).or_insert(one.why);
    }
    let mut sets = Sets::new(site_requests.len());
    for (module, a, b) in added.shares {
        sets.join(batch.request_of(module, a), batch.request_of(module, b));
    }
    let sites = added.sites.into_iter().map(|site| (batch.request_of(site.module, site.request), site));
    placing.group((own, all), sites, sets, refused)
}

/// What stubs call at a hit.
fn functions(state: ExtendedState) -> CallFunctions {
    CallFunctions {
        entry: dispatch::entry as *const () as u64,
        general: general::entry as *const () as u64,
        begin: general::returns::begin as *const () as u64,
        exit: dispatch::exit as *const () as u64,
        general_exit: general::returns::exit as *const () as u64,
        begins: Some(inlined(general::inlined::InlinedPath::begin())),
        arms: Some(inlined(general::inlined::InlinedPath::arm())),
        ends: Some(inlined(general::inlined::InlinedPath::end())),
        state,
    }
}

/// Requests in one mapping.
struct OfModule {
    /// Index of the first of them.
    first: usize,
    requests: Vec<ActionRequest>,
}

/// Sites to be patched, in the planner's form.
struct Batch<'a> {
    site_requests: &'a [SiteRequest],
    modules: Vec<OfModule>,
    /// Callees, by `ActionRequest::probe`.
    callees: Vec<Callee>,
    /// Index of the request to which each callee belongs.
    belongs: Vec<usize>,
}

impl<'a> Batch<'a> {
    fn new(site_requests: &'a [SiteRequest]) -> Self {
        let room = site_requests.len();
        let (callees, belongs) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut batch = Self { site_requests, modules: Vec::new(), callees, belongs };
        let mut of_load: HashMap<Load, usize> = HashMap::new();
        let mut last = None;
        for (index, one) in site_requests.iter().enumerate() {
            // Mostly, one after another is of the same file.
            let module = match last.filter(|(load, _)| *load == one.load) {
                Some((_, module)) => module,
                None => *of_load.entry(one.load).or_insert_with(|| {
                    batch.modules.push(OfModule { first: index, requests: Vec::new() });
                    batch.modules.len() - 1
                }),
            };
            last = Some((one.load, module));
            batch.add(module, index);
        }
        batch
    }
    /// Adds what a site request asks of the planner.
    fn add(&mut self, module: usize, index: usize) {
        let one = &self.site_requests[index];
        for (action, by_trap) in one.actions() {
            let probe = self.callees.len() as u32;
            let (latency, function) = (None, one.function);
            self.modules[module].requests.push(ActionRequest { probe, latency, function, action });
            self.callees.push(Callee {
                argument: one.probe.address(),
                saves_state: one.part.saves,
                only_returns: one.part.only_returns,
                arms: action == Action::CallArmed,
                by_trap,
            });
            self.belongs.push(index);
        }
    }
    /// The code near the sites of each mapping.
    fn code_maps(&self, alone: bool) -> Vec<Arc<CodeMap>> {
        let map = |m: &OfModule| self.site_requests[m.first].file.code_map(&m.requests, GUARDED, alone);
        self.modules.iter().map(map).collect()
    }
    fn modules<'b>(&'b self, maps: &'b [Arc<CodeMap>]) -> Vec<Module<'b>> {
        let module = |(module, map): (&'b OfModule, &'b Arc<CodeMap>)| {
            let SiteRequest { file, load, .. } = &self.site_requests[module.first];
            let bias = Bias(load.bias);
            let (name, image, requests) = (file.path.as_str(), &file.image, module.requests.as_slice());
            Module { name, file: file.id, image, bias, map, requests, semaphores: &[] }
        };
        self.modules.iter().zip(maps).map(module).collect()
    }
    /// Called before the sites are written.
    fn announce(&self, calls: Vec<OwnCall>, placing: &mut Placing<'_>) {
        placing.expect(calls.len());
        for OwnCall { module, call } in calls {
            let called = call.called.iter().map(|&(request, exit)| (self.belongs[request as usize], exit));
            placing.announce(StubCall {
                head: call.head,
                at: call.at,
                copy: call.copy.0,
                is_trap: call.is_trap,
                request: self.modules[module as usize].first,
                called,
            });
        }
    }
    /// Index of the site request to which one of the planner's belongs.
    fn request_of(&self, module: u32, request: u32) -> usize {
        self.belongs[self.modules[module as usize].requests[request as usize].probe as usize]
    }
}
