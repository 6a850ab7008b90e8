//! A program's handlers of faults, at the entries of which faults of copies get their original addresses
//! (docs/design/faults.md).
//!
//! In: a process that catches faults, its mappings. Out: a site for the entry of each handler; whether there is
//! one for all. Does not: patch; the batch moves no instruction that may fault if one of these sites is refused.

use trapline_plan::Action;
use trapline_record::RemoteAddr;
use trapline_tracee::{Mapping, Process};

use super::held::HeldSite;
use super::patches::Patches;
use crate::arch::DELIVERS_FAULTS;
use crate::files::Files;
use crate::modules::{Mapped, Module, is_c_library};
use crate::session_request::SessionRequest;
use crate::sites::NamedSite;

/// SIGSEGV and SIGBUS in a set of signals.
const FAULTS: u64 = 1 << 10 | 1 << 6;

/// Whether faults can be delivered in a process like this one: it catches them, it is not Go's, and a C library
/// is there, with a `sigaction` at which it can be held.
pub(crate) fn may_deliver(
    process: &Process,
    requested: &SessionRequest,
    mapped: &[Mapped],
    go: bool,
) -> bool {
    DELIVERS_FAULTS
        && !go
        && !requested.options.faults_are_fatal
        && mapped.iter().any(|one| is_c_library(&one.mapping.path))
        && process.status().is_ok_and(|status| status.caught & FAULTS != 0)
}

/// Adds a site for the entry of each handler, in a process of which nothing is patched yet. Returns whether
/// faults are delivered, if all of them are patched.
pub(super) fn request_deliveries(
    (process, patches): (&Process, &Patches),
    files: &mut Files,
    requested: &SessionRequest,
    (maps, mapped): (&[Mapping], &[Mapped]),
    modules: &mut Vec<Module>,
    found: &mut Vec<NamedSite>,
) -> bool {
    if patches.attached.delivers_faults() {
        return true;
    }
    let go = mapped.iter().filter(|one| one.is_program);
    let go = go.into_iter().any(|one| one.open(process, files).is_ok_and(|module| module.file.image.is_go()));
    if !patches.segments().is_empty() || !may_deliver(process, requested, mapped, go) {
        return false;
    }
    let Ok(handlers) = patches.attached.fault_handlers(process, &requested.options) else { return false };
    let (known, before) = (modules.len(), found.len());
    let all = !handlers.is_empty()
        && handlers.into_iter().all(|handler| {
            let site = site_of(process, files, handler, (maps, mapped), modules);
            let is_found = site.is_some();
            found.extend(site);
            is_found
        });
    if !all {
        found.truncate(before);
        modules.truncate(known);
    }
    all
}

/// The site at a handler's entry, if that is a known function of a file. Adds the file's module.
fn site_of(
    process: &Process,
    files: &mut Files,
    (handler, informed): (u64, bool),
    (maps, mapped): (&[Mapping], &[Mapped]),
    modules: &mut Vec<Module>,
) -> Option<NamedSite> {
    let holds = |mapping: &&Mapping| (mapping.start.0..mapping.end.0).contains(&handler);
    let mapping = maps.iter().find(holds)?;
    let of_file = |module: &Module| Some(module.file.id) == mapping.file && module.is_at(mapping);
    let at = match modules.iter().position(of_file) {
        Some(known) => known,
        None => {
            let same = mapped.iter().filter(|one| Some(one.id) == mapping.file);
            let module = same.filter_map(|one| one.open(process, files).ok()).find(of_file)?;
            modules.push(module);
            modules.len() - 1
        }
    };
    let module = &modules[at];
    let start = module.bias.stated(RemoteAddr(handler));
    let image = &module.file.image;
    let function = image.function_at(start).filter(|&function| image.function(function).start == start)?;
    let name = format!("{start:#x}");
    HeldSite { function, at: start, action: Action::Deliver { informed }, facts: 0, name }.place(image, at)
}
