//! From sites to be patched to patches: one batch, planned together.
//!
//! In: sites, each with a mapping of its file and what its stub must do. Out: groups of sites that belong
//! together, because a window is shared or because one site needs all of them; and why others could not be
//! patched. Does not: know consumers.

use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use trapline_image::FunctionIndex;
use trapline_patch::own::{Own, OwnCall, OwnSite};
use trapline_patch::{Module, Options, PatchError, Request, Why};
use trapline_plan::{
    Action, ActionRequest, CallFunctions, CallInput, Callee, CodeMap, ExtendedState, InlinedPath,
};
use trapline_record::addr::Bias;
use trapline_record::{FileId, FileOffset};
use trapline_runtime::dispatch;
use trapline_runtime::x86_64::general;

use crate::files::ModuleFile;
use crate::inside::mapped_files::MappedFiles;
use crate::inside::site_request::{Group, Load, Sets, SiteRequest, StubAction, without_parts};
use crate::inside::state::{Key, State};
use crate::inside::trampolines;
use crate::inside::traps::{CalledSite, EngineTrap};
use crate::inside::{Error, loader, traps};

/// Only code near the sites is searched for branches into windows. A thread that comes from elsewhere meets a
/// guard, which the engine's handlers serve. (If a thread blocks traps for good, no window with an interior
/// boundary is patched.)
const GUARDED: bool = true;

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

/// What all batches have in common.
#[derive(Clone, Copy, Debug)]
pub(in crate::inside) struct Setting {
    pub(in crate::inside) state: ExtendedState,
    /// Faults of displaced code are shown at the original address.
    pub(in crate::inside) shows_originals: bool,
    pub(in crate::inside) shadow_stack: bool,
    /// No thread may be made to help: a thread that waits for this one may hold the loader's lock.
    pub(in crate::inside) alone: bool,
}

pub(super) fn inlined(
    general::inlined::InlinedPath { text, room }: general::inlined::InlinedPath,
) -> InlinedPath {
    InlinedPath { text, room }
}

/// Makes a file's map of code near these offsets, in the calling thread, so that a later plan finds it. If
/// all of them are entries of functions, it also plans speculatively.
pub(in crate::inside) fn know_near(file: &ModuleFile, offsets: &[u64]) {
    let image = &file.image;
    let mut last = None;
    let request = |&offset: &u64| {
        let at = image.svma_of(FileOffset(offset))?;
        let function = image.function_near(at, last);
        last = function;
        Some(ActionRequest { probe: 0, latency: None, function, action: Action::CallAt(at) })
    };
    let requests: Vec<ActionRequest> = offsets.iter().filter_map(request).collect();
    let map = file.code_map(&requests, GUARDED, true);
    let entry = |request: &ActionRequest| {
        request.function.filter(|&function| request.action == Action::CallAt(image.function(function).start))
    };
    let entries: Option<Vec<FunctionIndex>> = requests.iter().map(entry).collect();
    if let Some(entries) = entries.filter(|entries| entries.len() == offsets.len()) {
        map.plan_speculatively(image, &entries);
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
    let maps: Vec<Arc<CodeMap>> = batch
        .modules
        .iter()
        .map(|m| site_requests[m.first].file.code_map(&m.requests, GUARDED, setting.alone))
        .collect();
    let modules: Vec<Module<'_>> = batch
        .modules
        .iter()
        .zip(&maps)
        .map(|(module, map)| {
            let SiteRequest { file, load, .. } = &site_requests[module.first];
            let bias = Bias(load.bias);
            let (name, image, requests) = (file.path.as_str(), &file.image, module.requests.as_slice());
            Module { name, file: file.id, image, bias, map, requests, semaphores: &[] }
        })
        .collect();
    let functions = CallFunctions {
        entry: dispatch::entry as *const () as u64,
        general: general::entry as *const () as u64,
        begin: general::returns::begin as *const () as u64,
        exit: dispatch::exit as *const () as u64,
        general_exit: general::returns::exit as *const () as u64,
        begins: Some(inlined(general::inlined::InlinedPath::begin())),
        arms: Some(inlined(general::inlined::InlinedPath::arm())),
        ends: Some(inlined(general::inlined::InlinedPath::end())),
        state: setting.state,
    };
    let calls = CallInput { functions, callees: &batch.callees, may_trap: true };
    let Setting { shows_originals, alone, .. } = setting;
    let options = Options { faults_are_fatal: shows_originals, alone, ..Options::default() };
    let request = Request {
        modules: &modules,
        go: false,
        threads: Default::default(),
        durations: Default::default(),
        options,
        calls: Some(calls),
        filters: &[],
        unwinders: &[],
        own_code: &[],
    };
    // By head of the patch.
    let (mut new_traps, mut here) = (Vec::new(), Vec::new());
    let mut announce = |calls: Vec<OwnCall>| {
        here.reserve(calls.len());
        for OwnCall { module, call } in calls {
            let one = &site_requests[batch.modules[module as usize].first];
            for one in
                call.called.iter().map(|&(request, _)| &site_requests[batch.site_requests[request as usize]])
            {
                trampolines::accepted(one);
            }
            let called = call
                .called
                .iter()
                .map(|&(request, exit)| (site_requests[batch.site_requests[request as usize]].probe, exit));
            let new = CalledSite::new(call.at.0, call.copy.0, called);
            if call.is_trap
                && let Some(new) =
                    EngineTrap::new(&new, one.load, &one.file.image, known, setting.shadow_stack)
            {
                new.put(known);
                new_traps.push((call.head.0, new));
            }
            here.push((call.head.0, new));
        }
    };
    let added = own.add(&request, &mut announce)?;
    let (mut new_traps, mut here) = (ByHead::new(new_traps), ByHead::new(here));

    let mut refused: HashMap<usize, Why> = HashMap::new();
    for one in added.report.refused {
        refused.entry(batch.site_request_of(one.module, one.request)).or_insert(one.why);
    }
    let mut sets = Sets::new(site_requests.len());
    for (module, a, b) in added.shares {
        sets.join(batch.site_request_of(module, a), batch.site_request_of(module, b));
    }
    let first = all.len();
    all.reserve(site_requests.len());
    let mut group_of: Vec<Option<usize>> = vec![None; site_requests.len()];
    for site in added.sites {
        let index = batch.site_request_of(site.module, site.request);
        let group = *group_of[sets.find(index)].get_or_insert_with(|| {
            all.push(Group::new(site_requests[index].load));
            all.len() - 1
        });
        let group = &mut all[group];
        group.traps.extend(new_traps.at(site.entry.addr.0));
        group.calls.extend(here.at(site.entry.addr.0));
        group.sites.push(site);
    }
    for (index, one) in site_requests.iter().enumerate().filter(|(index, _)| !refused.contains_key(index)) {
        if let Some(group) = group_of[sets.find(index)] {
            all[group].parts.push(one.part);
        }
    }
    let lost = without_parts(all, first);
    let sites: Vec<OwnSite> = lost.iter().flat_map(|group| group.sites.iter().copied()).collect();
    if !sites.is_empty()
        && let Err(error) = own.take_out(&sites)
    {
        all.truncate(first);
        return Err(error);
    }
    // Entered in the table, but not written, or taken out again.
    lost.iter().flat_map(|group| &group.traps).for_each(EngineTrap::take_out);
    new_traps.left().for_each(|new_traps| new_traps.take_out());
    let mut refused: Vec<(usize, Why)> = refused.into_iter().collect();
    refused.sort_by_key(|r| r.0);
    Ok(refused)
}

/// What belongs to heads of patches, taken in the order of their addresses.
struct ByHead<T> {
    rest: Peekable<vec::IntoIter<(u64, T)>>,
    left: Vec<T>,
}

impl<T> ByHead<T> {
    fn new(mut all: Vec<(u64, T)>) -> Self {
        all.sort_by_key(|one| one.0);
        Self { rest: all.into_iter().peekable(), left: Vec::new() }
    }
    /// All of one head, whose address is higher than those requested before.
    fn at(&mut self, head: u64) -> impl Iterator<Item = T> {
        while let Some((_, one)) = self.rest.next_if(|one| one.0 < head) {
            self.left.push(one);
        }
        std::iter::from_fn(move || self.rest.next_if(|one| one.0 == head).map(|one| one.1))
    }
    /// What was never requested.
    fn left(self) -> impl Iterator<Item = T> {
        self.left.into_iter().chain(self.rest.map(|one| one.1))
    }
}

/// Requests in one mapping.
struct OfModule {
    /// Index of the first site there.
    first: usize,
    requests: Vec<ActionRequest>,
}

/// Sites to be patched, in the planner's form.
struct Batch {
    modules: Vec<OfModule>,
    /// Callees, by `ActionRequest::probe`.
    callees: Vec<Callee>,
    /// Index of the site to which each callee belongs.
    site_requests: Vec<usize>,
}

impl Batch {
    fn new(site_requests: &[SiteRequest]) -> Self {
        let room = site_requests.len();
        let (callees, belongs) = (Vec::with_capacity(room), Vec::with_capacity(room));
        let mut batch = Self { modules: Vec::new(), callees, site_requests: belongs };
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
            for (role, by_trap) in one.actions() {
                let probe = batch.callees.len() as u32;
                batch.modules[module].requests.push(ActionRequest {
                    probe,
                    latency: None,
                    function: one.function,
                    action: role,
                });
                batch.callees.push(Callee {
                    argument: one.probe.address(),
                    saves_state: one.part.saves,
                    only_returns: one.part.only_returns,
                    arms: role == Action::CallArmed,
                    by_trap,
                });
                batch.site_requests.push(index);
            }
        }
        batch
    }
    fn site_request_of(&self, module: u32, request: u32) -> usize {
        self.site_requests[self.modules[module as usize].requests[request as usize].probe as usize]
    }
}

impl State {
    /// Settings for all batches from now on; the handlers are installed.
    pub(in crate::inside) fn setting(&mut self) -> Result<Setting, Error> {
        let state = trapline_tracee::ExtendedState::here().ok_or(Error::NoExtendedState)?;
        let state = ExtendedState { mask: state.mask, len: state.len, shows_use: state.shows_use };
        traps::serve()?;
        let process = self.own()?.process();
        let status = process.status().map_err(trapline_patch::PatchError::from)?;
        let in_the_loader = loader::is_above(process);
        let (shows_originals, shadow_stack) = (traps::shows_originals(), status.shadow_stack);
        Ok(Setting {
            state,
            shows_originals,
            shadow_stack,
            alone: in_the_loader || self.noticing.is_looking(),
        })
    }
    /// Finds out now what a look must know of these sites' files, if they are not mapped yet.
    pub(in crate::inside) fn know_code(&self, keys: &[Key]) {
        let Some(own) = &self.own else { return };
        let probed_sites = keys.iter().map(|key| &self.probed_sites[key.0 as usize]);
        let mut requests: HashMap<FileId, (&ModuleFile, Vec<ActionRequest>)> = HashMap::new();
        for probed_site in probed_sites.filter(|probed_site| probed_site.groups.is_empty()) {
            let request = ActionRequest {
                probe: 0,
                latency: None,
                function: probed_site.function,
                action: Action::CallAt(probed_site.at),
            };
            requests
                .entry(probed_site.file.id)
                .or_insert_with(|| (&probed_site.file, Vec::new()))
                .1
                .push(request);
        }
        if !requests.is_empty() {
            let alone = loader::is_above(own.process());
            requests.values().for_each(|(file, requests)| drop(file.code_map(requests, GUARDED, alone)));
        }
    }
}
