//! A program's handlers of faults, at the entries of which faults of copies get their original addresses
//! (docs/design/faults.md).
//!
//! In: a process that catches faults, its mappings. Out: a site for the entry of each handler; whether there is
//! one for all. Does not: patch; the batch moves no instruction that may fault if one of these sites is refused.

use trapline_order::Order as _;
use trapline_patch::{Attached, Options};
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
    is_able(requested, mapped, go) && process.status().is_ok_and(|status| status.caught & FAULTS != 0)
}

fn is_able(requested: &SessionRequest, mapped: &[Mapped], go: bool) -> bool {
    DELIVERS_FAULTS
        && !go
        && !requested.options.faults_are_fatal
        && mapped.iter().any(|one| is_c_library(&one.mapping.path))
}

/// Which handlers there are to be, and how often they changed.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// Faults are delivered, if all sites for that are patched.
    pub(super) is_on: bool,
    /// The handlers of which sites are wanted, while sites are being probed anew for them.
    given: Option<Vec<(u64, bool)>>,
    changes: u32,
}

/// How often a program may set handlers. Each time costs milliseconds; after that, no window may fault.
const MOST_CHANGES: u32 = 32;

impl Delivery {
    /// Step D10: the handlers that the program has, and those that held threads are about to set. `None` if they
    /// are not known, or change too often. Those whose entries are not patched are given to the next look.
    pub(super) fn change(
        &mut self,
        process: &Process,
        attached: &Attached,
        options: &Options,
    ) -> Option<Vec<u64>> {
        self.changes += 1;
        let mut handlers = attached.asked_handlers();
        if handlers.is_empty() || self.changes > MOST_CHANGES {
            return None;
        }
        handlers.extend(attached.fault_handlers(process, options).ok()?);
        handlers.retain(|handler| !attached.handles(handler.0));
        handlers.order();
        handlers.dedup_by_key(|handler| handler.0);
        let new = handlers.iter().map(|handler| handler.0).collect();
        self.given = Some(handlers);
        Some(new)
    }
    /// Ends what [`Self::change`] began.
    pub(super) fn end_change(&mut self) {
        self.given = None;
    }
    /// Adds a site for the entry of each handler: of those that are given, or in a process of which nothing is
    /// patched yet. Notes whether faults are delivered, if all of them are patched.
    pub(super) fn request(
        &mut self,
        of: (&Process, &Patches),
        files: &mut Files,
        requested: &SessionRequest,
        maps: (&[Mapping], &[Mapped]),
        modules: &mut Vec<Module>,
        found: &mut Vec<NamedSite>,
    ) {
        let given = self.given.as_deref();
        self.is_on = request_deliveries(of, given, files, requested, maps, modules, found);
    }
}

fn request_deliveries(
    (process, patches): (&Process, &Patches),
    given: Option<&[(u64, bool)]>,
    files: &mut Files,
    requested: &SessionRequest,
    (maps, mapped): (&[Mapping], &[Mapped]),
    modules: &mut Vec<Module>,
    found: &mut Vec<NamedSite>,
) -> bool {
    if given.is_none() && patches.attached.delivers_faults() {
        return true;
    }
    let go = mapped.iter().filter(|one| one.is_program);
    let go = go.into_iter().any(|one| one.open(process, files).is_ok_and(|module| module.file.image.is_go()));
    let handlers = match given {
        Some(given) if is_able(requested, mapped, go) => given.to_vec(),
        None if patches.segments().is_empty() && may_deliver(process, requested, mapped, go) => {
            patches.attached.fault_handlers(process, &requested.options).unwrap_or_default()
        }
        _ => return false,
    };
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
