//! From wanted places to patches of our own: one batch, planned together.
//!
//! In: spots, each with a mapping of its file and what its stub must do. Out: groups of sites that belong together, because a window is
//! shared or because one spot needs all of them; and why others could not be. Does not: know consumers.

use std::collections::HashMap;
use std::sync::Arc;

use trapline_image::FunctionIndex;
use trapline_patch::own::{Own, OwnSite};
use trapline_patch::{Module, Options, PatchError, Request, Why};
use trapline_plan::{CallFunctions, CallInput, Callee, CodeMap, ExtendedState, Role, Want};
use trapline_record::addr::Bias;
use trapline_record::{FileId, Svma};
use trapline_runtime::dispatch;
use trapline_runtime::x86_64::general;

use crate::files::ModuleFile;

/// A mapping of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Load {
    pub(super) file: FileId,
    pub(super) bias: u64,
}

/// What a stub of a spot does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) spot: u32,
    /// At the site itself.
    pub(super) entry: bool,
    /// At its function's returns.
    pub(super) returns: bool,
    /// Extended state is saved from the first; where it is not, the gate does so when a consumer needs it.
    pub(super) saves: bool,
}

/// Sites that are taken out and put back together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) load: Load,
    pub(super) sites: Vec<OwnSite>,
    pub(super) parts: Vec<Part>,
    pub(super) live: bool,
}

/// Something to be patched.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) load: Load,
    pub(super) part: Part,
    pub(super) file: Arc<ModuleFile>,
    pub(super) at: Svma,
    pub(super) function: Option<FunctionIndex>,
    /// Address of its probe.
    pub(super) probe: u64,
    pub(super) by_trap: bool,
}

impl Wanted {
    fn roles(&self) -> impl Iterator<Item = Role> {
        let start = self.function.map(|f| self.file.image.function(f).start);
        let entry = if start == Some(self.at) { Role::CallEntry } else { Role::CallAt(self.at) };
        let entry = self.part.entry.then_some(entry);
        entry.into_iter().chain(self.part.returns.then_some(Role::CallExits))
    }
}

/// What all batches have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) state: ExtendedState,
    pub(super) faults_are_fatal: bool,
    pub(super) guarded: bool,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub(super) struct Placed {
    pub(super) groups: Vec<Group>,
    /// Index of the wanted, and why not.
    pub(super) refused: Vec<(usize, Why)>,
}

/// Patches what is wanted, each as a whole or not at all.
pub(super) fn place(own: &mut Own, wanted: &[Wanted], setting: Setting) -> Result<Placed, PatchError> {
    let batch = Batch::new(wanted);
    let maps: Vec<Arc<CodeMap>> =
        batch.modules.iter().map(|m| wanted[m.first].file.code_map(&m.wants, setting.guarded)).collect();
    let modules: Vec<Module<'_>> = batch
        .modules
        .iter()
        .zip(&maps)
        .map(|(module, map)| {
            let Wanted { file, load, .. } = &wanted[module.first];
            let bias = Bias(load.bias);
            let (name, image, wants) = (file.path.as_str(), &file.image, module.wants.as_slice());
            Module { name, file: file.id, image, bias, map, wants, semaphores: &[] }
        })
        .collect();
    let functions = CallFunctions {
        entry: dispatch::entry as *const () as u64,
        general: general::entry as *const () as u64,
        exit: dispatch::exit as *const () as u64,
        state: setting.state,
    };
    let calls = CallInput { functions, callees: &batch.callees, may_trap: true };
    let options = Options { faults_are_fatal: setting.faults_are_fatal, ..Options::default() };
    let request =
        Request { modules: &modules, go: false, durations: Default::default(), options, calls: Some(calls) };
    let added = own.add(&request)?;

    let mut refused: HashMap<usize, Why> = HashMap::new();
    for one in added.report.refused {
        refused.entry(batch.wanted_of(one.module, one.want)).or_insert(one.why);
    }
    let mut sets = Sets::new(wanted.len());
    for (module, a, b) in added.shares {
        sets.join(batch.wanted_of(module, a), batch.wanted_of(module, b));
    }
    let mut groups: Vec<Group> = Vec::with_capacity(wanted.len());
    let mut group_of: Vec<Option<usize>> = vec![None; wanted.len()];
    for site in added.sites {
        let index = batch.wanted_of(site.module, site.want);
        let group = *group_of[sets.find(index)].get_or_insert_with(|| {
            groups.push(Group { load: wanted[index].load, sites: Vec::new(), parts: Vec::new(), live: true });
            groups.len() - 1
        });
        groups[group].sites.push(site);
    }
    for (index, one) in wanted.iter().enumerate().filter(|(index, _)| !refused.contains_key(index)) {
        if let Some(group) = group_of[sets.find(index)] {
            groups[group].parts.push(one.part);
        }
    }
    let (kept, lost): (Vec<Group>, Vec<Group>) = groups.into_iter().partition(|g| !g.parts.is_empty());
    let lost: Vec<OwnSite> = lost.into_iter().flat_map(|group| group.sites).collect();
    if !lost.is_empty() {
        own.take_out(&lost)?;
    }
    let mut refused: Vec<(usize, Why)> = refused.into_iter().collect();
    refused.sort_by_key(|r| r.0);
    Ok(Placed { groups: kept, refused })
}

/// The wants of one mapping.
struct OfModule {
    /// The first wanted there.
    first: usize,
    wants: Vec<Want>,
}

/// Wanted places in the planner's words.
struct Batch {
    modules: Vec<OfModule>,
    /// By `Want::probe`.
    callees: Vec<Callee>,
    /// The wanted that each callee belongs to.
    wanted: Vec<usize>,
}

impl Batch {
    fn new(wanted: &[Wanted]) -> Self {
        let mut batch = Self { modules: Vec::new(), callees: Vec::new(), wanted: Vec::new() };
        let mut of_load: HashMap<Load, usize> = HashMap::new();
        for (index, one) in wanted.iter().enumerate() {
            let module = *of_load.entry(one.load).or_insert_with(|| {
                batch.modules.push(OfModule { first: index, wants: Vec::new() });
                batch.modules.len() - 1
            });
            for role in one.roles() {
                let probe = batch.callees.len() as u32;
                batch.modules[module].wants.push(Want { probe, latency: None, function: one.function, role });
                batch.callees.push(Callee {
                    argument: one.probe,
                    saves_state: one.part.saves,
                    by_trap: one.by_trap,
                });
                batch.wanted.push(index);
            }
        }
        batch
    }
    fn wanted_of(&self, module: u32, want: u32) -> usize {
        self.wanted[self.modules[module as usize].wants[want as usize].probe as usize]
    }
}

/// Disjoint sets of indices.
struct Sets(Vec<usize>);

impl Sets {
    fn new(count: usize) -> Self {
        Self((0..count).collect())
    }
    fn find(&mut self, of: usize) -> usize {
        let mut at = of;
        while self.0[at] != at {
            self.0[at] = self.0[self.0[at]];
            at = self.0[at];
        }
        at
    }
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a.max(b)] = a.min(b);
    }
}
