//! What a program changes while patches rely on it: its handlers of faults, its filters of system calls, its
//! right to read the clock.
//!
//! In: facts that held calls are about to change (`trapline_patch`'s `hold`), and changes that /proc shows
//! after calls that bypassed the C library. Out: patches that relied on those facts taken out; their places
//! probed in another way, where there is one; held threads let go; notices. Invariant: HLD-1 a place that is
//! no longer probed is reported. Does not: stop the calling thread; its stub does.
//!
//! Some calls bypass the C library: those of Go, of static programs without symbols, and a program's own
//! `syscall` instructions. /proc/PID/status shows what they changed: a handler of faults up to ten
//! milliseconds later, a filter up to fifty. It never shows that a thread lost the right to read the clock.

use std::collections::HashSet;

use trapline_image::ProbeSpec;
use trapline_plan::{Action, Hold};
use trapline_record::control::fact;

use super::attach::key;
use super::{Key, SessionRequest, Source, Traced};
use crate::files::Files;
use crate::follow::Following;
use crate::modules::{Mapped, Module};
use crate::report::Refused;
use crate::sites::{ProbedPlace, ProbedPlaces};
use crate::values::Values;

/// Functions at which calls are held.
const FUNCTIONS: [(&str, Hold); 3] =
    [("sigaction", Hold::Sigaction), ("prctl", Hold::Prctl), ("syscall", Hold::Syscall)];

/// State of these changes in one process.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The functions were looked for.
    wanted: bool,
    /// A static program in which none of them was found: its calls are not seen before they are made.
    blind: bool,
    /// Sites that are being probed anew.
    again: Option<HashSet<Key>>,
    /// How many of those could not be probed, and one example.
    lost: Option<(u64, Refused)>,
}

impl Held {
    /// Whether places are being probed anew.
    pub(super) const fn again(&self) -> bool {
        self.again.is_some()
    }
    /// Whether the program may change its handlers of faults before that is seen.
    pub(super) const fn is_blind(&self) -> bool {
        self.blind
    }
    pub(super) fn note_lost(&mut self, lost: Option<(u64, Refused)>) {
        self.lost = lost;
    }
}

/// Whether the place is one where calls are held; its hits are not reported.
pub(super) const fn is_hold(place: &ProbedPlace) -> bool {
    matches!(place.action, Action::Hold(_))
}

impl Traced {
    /// Whether threads may wait for an answer.
    pub(crate) fn holds(&self) -> bool {
        self.ended.is_none() && !self.detached && self.attached.holds() && self.attached.relied_on() != 0
    }
    /// While places are probed anew, keeps only those.
    pub(super) fn keep_closed(&self, modules: &[Module], places: &mut ProbedPlaces) {
        if let Some(again) = &self.held.again {
            places.found.retain(|place| again.contains(&key(modules, place)));
            places.refused.clear();
        }
    }
    /// Adds the functions of the C library at which calls are held, once.
    pub(super) fn request_holds(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        fresh: &[Mapped],
        modules: &mut Vec<Module>,
        found: &mut Vec<ProbedPlace>,
    ) {
        let program_is_go = modules.iter().any(|module| module.is_program && module.file.image.is_go());
        let counts = !requested.hit_action.is_timed()
            && !requested.hit_action.is_reported()
            && !requested.hit_action.is_recorded();
        let needless = counts && requested.options.faults_are_fatal;
        if std::mem::replace(&mut self.held.wanted, true) || program_is_go || needless || !HOLDS {
            return;
        }
        for one in fresh {
            let name = one.mapping.path.rsplit('/').next().unwrap_or_default();
            let is_library =
                ["libc.so", "libc-2.", "libc.musl-", "ld-musl-"].iter().any(|n| name.starts_with(n));
            if !is_library && !one.is_program {
                continue;
            }
            let known =
                modules.iter().position(|module| module.file.id == one.id && module.is_at(&one.mapping));
            let module = match known {
                Some(module) => module,
                None => match one.open(&self.process, files) {
                    Ok(module) if is_library || module.file.image.is_static() => {
                        modules.push(module);
                        modules.len() - 1
                    }
                    _ => continue,
                },
            };
            if is_library || modules[module].file.image.is_static() {
                let holds = holds_in(modules, module);
                self.held.blind = holds.is_empty();
                found.extend(holds);
                return;
            }
        }
    }
    /// Answers held calls and, at a `look`, finds changes that were made without asking.
    pub(crate) fn answer(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        look: bool,
        following: &mut Following,
    ) {
        if self.ended.is_some() || self.detached || self.attached.relied_on() == 0 {
            return;
        }
        let asked = self.attached.asked();
        let facts = asked | self.found_changed(look);
        if facts == 0 {
            return;
        }
        let late = facts & !asked != 0 || self.attached.went_on(asked);
        following.pause();
        match self.attached.close(&self.process, facts) {
            Ok(closed) => {
                if closed.left > 0 {
                    let (left, pid) = (closed.left, self.process.pid());
                    self.notices.push(format!(
                        "{left} patches of process {pid} could not be taken out although {}: it may end at their next hit",
                        reason(facts)
                    ));
                }
                self.probe_anew(files, requested, facts, &closed.probes, late);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => self.notices.push(format!("{}: {error}", reason(facts))),
        }
        // Before the thread goes on, since it may execute a program at once.
        self.notices.extend(following.resume());
        self.attached.let_go();
    }
    /// Facts that have changed by what /proc shows. Handlers are checked each time, since one file shows
    /// them. Filters are checked only at a `look`, since each thread has its own.
    fn found_changed(&self, look: bool) -> u64 {
        const FAULTS: u64 = 1 << 10 | 1 << 6;
        let relied = self.attached.relied_on();
        let mut found = 0;
        if relied & fact::FAULTS != 0
            && !self.attached.serves_faults()
            && self.process.status().is_ok_and(|status| status.caught & FAULTS != 0)
        {
            found |= fact::FAULTS;
        }
        if look
            && relied & fact::FILTER != 0
            && self.process.restricted().is_ok_and(|restricted| restricted.is_some())
        {
            found |= fact::FILTER;
        }
        found
    }
    /// Probes the places again that have lost their patches; those for which there is another way get that.
    fn probe_anew(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        facts: u64,
        closed: &HashSet<(usize, u32)>,
        late: bool,
    ) {
        let is_closed = |source: &Source| match *source {
            Source::Counter { segment, index, .. } => closed.contains(&(segment, index)),
            Source::Kernel { .. } => false,
        };
        let lost = |index: usize| self.sites[index].sources.iter().any(is_closed);
        let keys: HashSet<Key> =
            self.keys.iter().filter(|(_, index)| lost(**index)).map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return;
        }
        let (all, pid) = (keys.len() as u64, self.process.pid());
        let refused = if facts & !fact::FAULTS == 0 {
            self.held.again = Some(keys);
            let (seen, matched) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.matched));
            let misses = self.misses.len();
            let looked = self.look(files, requested, &mut || {});
            self.misses.truncate(misses);
            self.seen.extend(seen);
            self.matched.extend(matched);
            self.held.again = None;
            let lost = self.held.lost.take();
            match looked {
                Ok(_) => lost.map(|(n, first)| (n, format!("for example {}: {}", first.probe, first.reason))),
                Err(error) if error.is_gone() => return,
                Err(error) => Some((all, error.to_string())),
            }
        } else {
            Some((all, "attach again to probe what can be probed now".to_owned()))
        };
        let meanwhile =
            if late { "; hits in the moment before may have ended it, or were missed" } else { "" };
        let why = reason(facts);
        let places = |n: u64| if n == 1 { "1 place".to_owned() } else { format!("{n} places") };
        let verb = |n: u64| if n == 1 { "is" } else { "are" };
        self.notices.push(match refused {
            None => format!(
                "{} of process {pid} {} probed in another way from now on, since {why}{meanwhile}",
                places(all),
                verb(all)
            ),
            Some((n, what)) => format!(
                "{} of process {pid} {} not probed any more, since {why}; calls there are not seen from now on ({what}){meanwhile}",
                places(n),
                verb(n)
            ),
        });
    }
}

/// Whether stubs can hold calls on this processor.
const HOLDS: bool = cfg!(target_arch = "x86_64");

/// What the program did, for notices.
const fn reason(facts: u64) -> &'static str {
    match facts {
        fact::FAULTS => "it handles SIGSEGV or SIGBUS now",
        fact::FILTER => "it filters its system calls now (seccomp)",
        fact::CLOCK => "it denies a thread the time-stamp counter now (PR_SET_TSC)",
        _ => "it restricts its threads now",
    }
}

/// The functions of a C library at which calls are held, as places.
fn holds_in(modules: &[Module], module: usize) -> Vec<ProbedPlace> {
    let image = &modules[module].file.image;
    let mut found = Vec::new();
    for (name, hold) in FUNCTIONS {
        let Ok(spec) = name.parse::<ProbeSpec>() else { continue };
        let selected = image.select(&spec.func, modules[module].basename()).unwrap_or_default();
        for one in selected {
            let at = image.function(one.function).start;
            let Some(offset) = image.offset_of(at) else { continue };
            found.push(ProbedPlace {
                module,
                at,
                offset,
                function: Some(one.function),
                action: Action::Hold(hold),
                probe: name.to_owned(),
                aliases: Vec::new(),
                label: String::new(),
                semaphore: None,
                filter: None,
                values: Values::default(),
                asked: None,
                arguments: None,
            });
        }
    }
    found
}
