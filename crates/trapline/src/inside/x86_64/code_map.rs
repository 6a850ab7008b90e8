//! Maps of the code near sites, made before they are needed.
//!
//! In: files, and what is requested in them. Out: the files' own maps of their code
//! (`ModuleFile::code_map`). Does not: plan what is written.

use std::collections::HashMap;

use trapline_image::FunctionIndex;
use trapline_patch::own::Own;
use trapline_plan::{Action, ActionRequest};
use trapline_record::{FileId, FileOffset};

use crate::files::ModuleFile;
use crate::inside::check::CheckedSite;
use crate::inside::loader;
use crate::inside::probed_site::ProbedSite;

/// Only code near the sites is searched for branches into windows. A thread that comes from elsewhere meets a
/// guard, which the engine's handlers serve. (If a thread blocks traps for good, no window with an interior
/// boundary is patched.)
pub(super) const GUARDED: bool = true;

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

/// Finds out now what a look must know of these sites' files, if they are not mapped yet.
pub(in crate::inside) fn know_code<'a>(
    own: Option<&Own>,
    probed_sites: impl Iterator<Item = &'a ProbedSite>,
) {
    let Some(own) = own else { return };
    let mut requests: HashMap<FileId, (&ModuleFile, Vec<ActionRequest>)> = HashMap::new();
    for one in probed_sites.filter(|probed_site| probed_site.groups().is_empty()) {
        let CheckedSite { at, function, .. } = one.site();
        let action = Action::CallAt(at);
        let request = ActionRequest { probe: 0, latency: None, function, action };
        requests.entry(one.file().id).or_insert_with(|| (one.file(), Vec::new())).1.push(request);
    }
    if !requests.is_empty() {
        let alone = loader::is_above(own.process());
        requests.values().for_each(|(file, requests)| drop(file.code_map(requests, GUARDED, alone)));
    }
}
