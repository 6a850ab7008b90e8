//! What a program changes while patches rely on it: its handlers of faults, its filters of system calls, its
//! right to read the clock.
//!
//! In: facts that held calls are about to change (`trapline_patch`'s `hold`), and changes that /proc shows
//! after calls that were not held. Out: patches that relied on those facts taken out; their sites
//! probed in another way, where there is one; held threads let go; notices. Invariants: HLD-1 a site that is
//! no longer probed is reported. HLD-2 each module is asked once where its calls are held, and again when it
//! was mapped anew. Does not: stop the calling thread; its stub does.
//!
//! | module | held at |
//! |---|---|
//! | each C library | its functions, by their names |
//! | a static program | the same, and its other system calls |
//! | a program, and what is probed besides | its own system calls (`plan`'s `system_calls`) |
//! | a Go program of which nothing is probed | nothing |
//! | the loader | where it tells of libraries (`trapline_patch`'s `loading`) |
//!
//! /proc/PID/status shows what other calls changed: a handler of faults, or the default action of SIGTRAP in
//! place of our handler, up to ten milliseconds later; a filter up to fifty. It never shows that a handler was
//! replaced by another one, or that a thread lost the right to read the clock.

use std::collections::HashSet;
use std::time::Duration;

use trapline_image::{FunctionIndex, Image, ProbeSpec};
use trapline_patch::Attached;
use trapline_plan::{Action, Hold};
use trapline_record::control::fact;
use trapline_record::{RemoteAddr, Svma};
use trapline_tracee::{FileId, Process};

use super::site_table::SiteKey;
use crate::error::Error;
use crate::files::{Files, ModuleFile};
use crate::modules::{Mapped, Module, is_c_library};
use crate::report::Refused;
use crate::session_request::SessionRequest;
use crate::sites::{NamedSite, NamedSites};
use crate::values::Values;

/// Functions of a C library at which calls are held, and the facts that they change.
const FUNCTIONS: [(&str, Hold, u64); 3] = [
    ("sigaction", Hold::Sigaction, fact::FAULTS | fact::TRAPS),
    ("prctl", Hold::Prctl, fact::FILTER | fact::CLOCK),
    ("syscall", Hold::Syscall, u64::MAX),
];

/// The loader's function that tells debuggers of libraries.
const RENDEZVOUS: &str = "_dl_debug_state";

/// State of these changes in one process.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Modules that were asked where their calls are held.
    asked: HashSet<(FileId, u64)>,
    /// A static program in which no call that installs handlers was found: such calls are not seen before they
    /// are made.
    blind: bool,
    /// Sites that are being probed anew.
    again: Option<HashSet<SiteKey>>,
    /// How many of those could not be probed, and one example.
    lost: Option<(u64, Refused)>,
}

impl Held {
    /// Whether sites are being probed anew.
    pub(super) const fn again(&self) -> bool {
        self.again.is_some()
    }
    /// Whether the program may change its handlers of faults before that is seen.
    pub(super) const fn is_blind(&self) -> bool {
        self.blind
    }
    /// Notes sites that are probed in one mapping of their file and not in another.
    pub(super) fn note_lost(&mut self, lost: Option<(u64, Refused)>) {
        self.lost = lost;
    }
    /// Begins to probe these sites anew.
    pub(super) fn begin_again(&mut self, sites: HashSet<SiteKey>) {
        self.again = Some(sites);
    }
    /// Ends it, with what the look became. Returns which of `all` sites are not probed any more, and why;
    /// fails if the process is gone.
    pub(super) fn end_again(&mut self, looked: Result<(), Error>, all: u64) -> Result<Option<Lost>, Error> {
        self.again = None;
        let lost = self.lost.take();
        match looked {
            Ok(()) => Ok(lost.map(|(sites, first)| {
                let why = format!("for example {}: {}", first.probe, first.reason);
                Lost { sites, why }
            })),
            Err(error) if error.is_gone() => Err(error),
            Err(error) => Ok(Some(Lost { sites: all, why: error.to_string() })),
        }
    }
    /// While sites are probed anew, keeps only those.
    pub(super) fn keep_closed(&self, modules: &[Module], places: &mut NamedSites) {
        if let Some(again) = &self.again {
            places.found.retain(|place| again.contains(&SiteKey::of(modules, place)));
            places.refused.clear();
        }
    }
    /// Forgets modules that were mapped anew, in which no call is held yet.
    pub(super) fn forget(&mut self, fresh: &[Mapped]) {
        if !self.again() {
            self.asked.retain(|asked| !fresh.iter().any(|one| load(one) == *asked));
        }
    }
    /// Adds the sites of `mapped` modules at which calls are held. `modules` holds those that are probed.
    pub(super) fn request_holds(
        &mut self,
        process: &Process,
        files: &mut Files,
        requested: &SessionRequest,
        mapped: &[Mapped],
        modules: &mut Vec<Module>,
        found: &mut Vec<NamedSite>,
    ) {
        let facts = facts_of(requested);
        let rendezvous = process.rendezvous();
        for one in mapped {
            let is_library = is_c_library(&one.mapping.path);
            let loads = rendezvous.filter(|(at, _)| one.mapping.contains(*at));
            let known =
                modules.iter().position(|module| module.file.id == one.id && module.is_at(&one.mapping));
            let is_asked = is_library || one.is_program || known.is_some() || loads.is_some();
            if !is_asked || !self.asked.insert(load(one)) {
                continue;
            }
            let opened = known.is_none().then(|| one.open(process, files));
            let module = match (known, &opened) {
                (Some(known), _) => &modules[known],
                // A program that is not probed does not make the others Go's.
                (None, Some(Ok(opened))) if is_library || loads.is_some() || !opened.file.image.is_go() => {
                    opened
                }
                _ => continue,
            };
            let image = &module.file.image;
            let has_names = is_library || image.is_static() && !image.is_go();
            let mut holds = if has_names { named(module) } else { Vec::new() };
            if !is_library && (one.is_program || known.is_some()) {
                holds.extend(own_calls(&module.file, facts, &holds));
            }
            holds.extend(loads.and_then(|loads| rendezvous_of(&module.file, loads)));
            self.blind |= has_names && !holds.iter().any(|hold| hold.facts & fact::FAULTS != 0);
            if holds.is_empty() {
                continue;
            }
            let at = known.unwrap_or(modules.len());
            found.extend(holds.into_iter().filter_map(|hold| hold.place(image, at)));
            modules.extend(opened.and_then(Result::ok));
        }
    }
}

/// A site where calls are held, or faults delivered.
pub(super) struct HeldSite {
    pub(super) function: FunctionIndex,
    pub(super) at: Svma,
    pub(super) action: Action,
    /// Facts that are changed there.
    pub(super) facts: u64,
    pub(super) name: String,
}

impl HeldSite {
    /// The site in the module of this index.
    pub(super) fn place(self, image: &Image, module: usize) -> Option<NamedSite> {
        Some(NamedSite {
            module,
            at: self.at,
            offset: image.offset_of(self.at)?,
            slot: 0,
            function: Some(self.function),
            action: self.action,
            probe: self.name,
            aliases: Vec::new(),
            label: String::new(),
            semaphore: None,
            filter: None,
            values: Values::default(),
            asked: None,
            is_libcall: false,
            arguments: None,
        })
    }
}

/// Facts that patches of this session may rely on.
fn facts_of(requested: &SessionRequest) -> u64 {
    let action = requested.hit_action;
    let counts = !action.is_timed() && !action.is_reported() && !action.is_recorded();
    let faults = if requested.options.faults_are_fatal { 0 } else { fact::FAULTS };
    let calls = if counts && !requested.options.by_thread { 0 } else { fact::FILTER };
    let clock = if counts { 0 } else { fact::CLOCK };
    faults | calls | clock | fact::TRAPS
}

fn load(one: &Mapped) -> (FileId, u64) {
    (one.id, one.mapping.start.0)
}

/// The C library's functions at which calls are held.
fn named(module: &Module) -> Vec<HeldSite> {
    let places = |(name, hold, facts): (&'static str, Hold, u64)| {
        let spec = name.parse::<ProbeSpec>().ok();
        let selected = spec.and_then(|spec| module.file.select(&spec.func, module.basename()).ok());
        let selected = selected.map(|selected| selected.to_vec()).unwrap_or_default();
        selected.into_iter().map(move |one| HeldSite {
            function: one.function,
            at: module.file.image.function(one.function).start,
            action: Action::Hold(hold),
            facts,
            name: name.to_owned(),
        })
    };
    FUNCTIONS.into_iter().flat_map(places).collect()
}

/// The loader's function at which a thread waits that has loaded libraries.
fn rendezvous_of(file: &ModuleFile, (_, state): (RemoteAddr, RemoteAddr)) -> Option<HeldSite> {
    let spec = RENDEZVOUS.parse::<ProbeSpec>().ok()?;
    let one = *file.select(&spec.func, "").ok()?.first()?;
    Some(HeldSite {
        function: one.function,
        at: file.image.function(one.function).start,
        action: Action::Hold(Hold::Load(state.0)),
        facts: 0,
        name: RENDEZVOUS.to_owned(),
    })
}

/// A file's own system calls that may change one of these facts. `named`: where its C library's calls are held
/// already. That library's own actions are none of the program's.
fn own_calls(file: &ModuleFile, facts: u64, named: &[HeldSite]) -> Vec<HeldSite> {
    let has_sigaction = named.iter().any(|place| place.action == Action::Hold(Hold::Sigaction));
    // Go's runtime has its signals from its first instruction.
    let signals = fact::FAULTS | fact::TRAPS;
    let facts = if has_sigaction || file.image.is_go() { facts & !signals } else { facts };
    if facts == 0 {
        return Vec::new();
    }
    let is_named = |function| named.iter().any(|place| place.function == function);
    let calls = file.system_calls().iter();
    let calls = calls.filter(|call| call.facts & facts != 0 && !is_named(call.function));
    let held = calls.map(|call| HeldSite {
        function: call.function,
        at: call.at,
        action: Action::HoldAt(call.at, call.hold),
        facts: call.facts,
        name: format!("{:#x}", call.at.0),
    });
    held.collect()
}

/// Sites that are not probed any more.
#[derive(Debug)]
pub(super) struct Lost {
    sites: u64,
    why: String,
}

/// What a program has changed, and how that was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    /// Facts that are no longer true, as bits.
    pub(super) facts: u64,
    /// Those of them that held calls are about to change.
    asked: u64,
    /// Some hits may have come before patches were taken out.
    late: bool,
}

impl Change {
    /// Facts that have changed: those that held calls are about to change, and those that /proc shows.
    /// `None` if there are none.
    pub(super) fn find(process: &Process, attached: &Attached, look: bool) -> Option<Self> {
        let asked = attached.asked();
        let facts = asked | shown(process, attached, look);
        (facts != 0).then(|| Self { facts, asked, late: facts & !asked != 0 || attached.went_on(asked) })
    }
    /// Whether the sites can be probed in another way.
    pub(super) const fn has_another_way(self) -> bool {
        self.facts & !(fact::FAULTS | fact::TRAPS) == 0
    }
    /// The sites that are lost where there is no other way.
    pub(super) fn loses(self, sites: u64) -> Lost {
        Lost { sites, why: "attach again to probe what can be probed now".to_owned() }
    }
    /// What the program did, for notices.
    pub(super) const fn reason(self) -> &'static str {
        match self.facts {
            fact::FAULTS => "it handles SIGSEGV or SIGBUS now",
            fact::FILTER => "it filters its system calls now (seccomp, or user dispatch)",
            fact::CLOCK => "it denies a thread the time-stamp counter now (PR_SET_TSC)",
            fact::TRAPS if self.asked == 0 => "it has set the default action of SIGTRAP or SIGILL",
            fact::TRAPS => "it handles SIGTRAP or SIGILL now",
            facts if facts & !(fact::FAULTS | fact::TRAPS) == 0 => "it handles faults and traps now",
            _ => "it restricts its threads now",
        }
    }
    /// Notice about patches that could not be taken out.
    pub(super) fn left_notice(self, pid: u32, left: usize) -> String {
        format!(
            "{left} patches of process {pid} could not be taken out although {}: it may end at their next hit",
            self.reason()
        )
    }
    /// Notice about the sites that were closed, `all` of them. `unseen`: the time for which other threads may have run
    /// past them.
    pub(super) fn closed_notice(
        self,
        pid: u32,
        all: u64,
        lost: Option<Lost>,
        unseen: Option<Duration>,
    ) -> String {
        let meanwhile =
            if self.late { "; hits in the moment before may have ended it, or were missed" } else { "" };
        let why = self.reason();
        let of = |n: u64| if n == 1 { "1 site".to_owned() } else { format!("{n} sites") };
        let verb = |n: u64| if n == 1 { "is" } else { "are" };
        let Some(Lost { sites, why: what }) = lost else {
            let threads = unseen.map_or_else(String::new, |time| {
                let ms = time.as_secs_f64() * 1e3;
                format!("; calls by other threads in those {ms:.1} ms were not seen")
            });
            return format!(
                "{} of process {pid} had to be probed anew, since {why}{threads}{meanwhile}",
                of(all)
            );
        };
        format!(
            "{} of process {pid} {} not probed any more, since {why}; calls there are not seen from now on ({what}){meanwhile}",
            of(sites),
            verb(sites)
        )
    }
}

/// Facts that have changed by what /proc shows. Handlers are checked each time, since one file shows them.
/// Filters are checked only at a `look`, since each thread has its own.
fn shown(process: &Process, attached: &Attached, look: bool) -> u64 {
    const FAULTS: u64 = 1 << 10 | 1 << 6;
    let relied = attached.relied_on();
    let mut found = 0;
    // Whether the program still has the handlers that it had, /proc does not show.
    let may_find = relied & fact::FAULTS != 0 && !attached.serves_faults() && !attached.delivers_faults();
    if may_find || relied & fact::TRAPS != 0 {
        let caught = process.status().map(|status| status.caught);
        if may_find && caught.as_ref().is_ok_and(|caught| caught & FAULTS != 0) {
            found |= fact::FAULTS;
        }
        // A process that ends, or executes a program, loses its memory before its handlers.
        if relied & fact::TRAPS != 0
            && caught.is_ok_and(|caught| attached.lost_traps(caught))
            && !process.has_lost_memory()
        {
            found |= fact::TRAPS;
        }
    }
    if look && relied & fact::FILTER != 0 && process.restricted().is_ok_and(|restricted| restricted.is_some())
    {
        found |= fact::FILTER;
    }
    found
}
