//! Patches the places that were chosen, and takes all patches out.
//!
//! In: places in modules. Out: tracked sites, each with where its hits are counted, and refusals. Places that
//! no jump reaches go to `kernel`. Does not: decide how a place is reached; `trapline_patch` does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use trapline_patch::{AttachReport, Durations, Options, PatchError, Request};
use trapline_plan::Action;
use trapline_tracee::TargetError;
use trapline_tracee::kernel::UprobeMulti;

use super::held::is_hold;
use super::{Key, Returns, SessionRequest, Source, Traced, Tracked};
use crate::error::Error;
use crate::files::Files;
use crate::library;
use crate::modules::Module;
use crate::report::{Ended, Refused, Site, Tactic};
use crate::requests::{Requests, no_goroutine, no_unwinder, refusals, tactics, tails_notice};
use crate::sites::ProbedPlace;
use crate::unwinders::{Unwinding, unwinding, unwinding_now};

/// Notice for a program without an unwinder in which return addresses are replaced.
const NOT_REGISTERED: &str = "the process has loaded no unwinder (libgcc_s); one that it loads while probed (for pthread_exit, \
                           pthread_cancel or backtrace) is told of replaced return addresses a moment later, and until \
                           then sees no further than a probed call";

/// Key of a place's site.
pub(super) fn key(modules: &[Module], place: &ProbedPlace) -> Key {
    let returns = matches!(
        place.action,
        Action::CountExits | Action::Tally { exits: true } | Action::Record { returns: true, .. }
    );
    (modules[place.module].file.id, place.offset, returns)
}

impl Traced {
    /// Whether returns can decide about calls here. In Go that takes the goroutine, by which an exit finds
    /// what its entry left; on arm64 it is in a register.
    pub(super) const fn returns_decide(&self) -> bool {
        !self.is_go || self.go_g.is_some() || cfg!(target_arch = "aarch64")
    }
    /// Whether guard traps can be served: the program's runtime leaves SIGTRAP alone, and no thread blocks it
    /// now.
    pub(crate) fn is_guarded(&self, modules: &[Module]) -> bool {
        const SIGTRAP: u64 = 1 << 4;
        let is_go = modules.iter().any(|module| module.is_program && module.file.image.is_go());
        let blocks = |tid| self.process.thread_status(tid).is_ok_and(|status| status.blocked & SIGTRAP != 0);
        !is_go && self.process.threads().is_ok_and(|threads| !threads.into_iter().any(blocks))
    }
    pub(super) fn attach(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        modules: &[Module],
        places: &[ProbedPlace],
    ) -> Result<Vec<(usize, Refused)>, Error> {
        self.threads = library::threads(&self.process, files);
        let calls = |place: &ProbedPlace| place.filter.as_ref().is_some_and(|filter| filter.tallies_calls());
        if !self.returns_decide() && places.iter().any(calls) {
            return Ok(places.iter().map(no_goroutine).enumerate().collect());
        }
        match requested.form() {
            Returns::Stack => self.attach_trampolines(files, requested, modules, places),
            Returns::Auto => self.attach_by_need(files, requested, modules, places),
            Returns::Exits => self.attach_as_asked(&Unwinding::default(), requested, modules, places, None),
        }
    }
    /// Turns refusals of places into refusals of sites. A place yields none if its site is probed in another
    /// mapping of the file, was already refused in one, or is unmapped by now. The second value holds the
    /// modules of which places are unmapped.
    pub(super) fn refusals_of_sites(
        &mut self,
        modules: &[Module],
        places: &[ProbedPlace],
        why: Vec<(usize, Refused)>,
    ) -> (Vec<Refused>, HashSet<usize>) {
        let (mut refused, mut gone, mut partly) = (Vec::new(), HashSet::new(), None);
        let why = why.into_iter().filter(|(index, _)| !places.get(*index).is_some_and(is_hold));
        for (place, why) in why.filter_map(|(index, why)| Some((places.get(index)?, why))) {
            let key = key(modules, place);
            match (why.kind, self.keys.contains_key(&key)) {
                ("not-mapped", _) => drop(gone.insert(place.module)),
                // The site's own patch is there.
                ("held", true) => {}
                (_, true) => partly = Some(partly.map_or((1, why), |(n, first): (u64, _)| (n + 1, first))),
                (_, false) if !self.not_probed.insert(key) => {}
                (_, false) => refused.push(why),
            }
        }
        if self.held.again() {
            self.held.note_lost(partly);
        } else if let Some((places, first)) = partly {
            self.notices.push(format!(
                "{places} places are probed in one mapping of their file and not in another, where their hits are not seen; for example {}: {}",
                first.probe, first.reason
            ));
        }
        (refused, gone)
    }
    /// Patches exits where that is possible. Replaces return addresses where it is not, and where a call may
    /// end as another function, if all unwinders can be told. One plan decides both, because most of its cost
    /// is finding exits. Returns the refusals, by index.
    fn attach_by_need(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        modules: &[Module],
        places: &[ProbedPlace],
    ) -> Result<Vec<(usize, Refused)>, Error> {
        let start = Instant::now();
        let found = Unwinding::of_auto(&self.process, files);
        self.costs.attach += start.elapsed();
        let left_alone = match found {
            Ok(unwinding) => {
                let options = Options { or_trampolines: true, ..requested.options };
                let requested = SessionRequest { options, ..requested.clone() };
                match self.attach_as_asked(&unwinding, &requested, modules, places, None) {
                    Err(Error::Patch(PatchError::Target(TargetError::NoCaller { why, .. }))) => why,
                    other => return other,
                }
            }
            Err(why) => why,
        };
        self.attach_as_asked(&Unwinding::default(), requested, modules, places, Some(&left_alone))
    }
    /// Replaces return addresses, if all unwinders can be told of it. Returns the refusals, by index.
    fn attach_trampolines(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        modules: &[Module],
        places: &[ProbedPlace],
    ) -> Result<Vec<(usize, Refused)>, Error> {
        let refuse = |why: &str| places.iter().map(|place| no_unwinder(place, why)).enumerate().collect();
        let unwinding = match unwinding_now(&self.process, files) {
            // An unwinder that is loaded later is told then (`register_unwinders`): a moment late, which the
            // user accepted by `--ret=stack`.
            Ok(unwinding) if unwinding.unwinders.is_empty() && !unwinding.is_static => {
                self.notices.push(NOT_REGISTERED.to_owned());
                unwinding
            }
            Ok(unwinding) => unwinding,
            Err(why) => return Ok(refuse(&why)),
        };
        let options = Options { by_trampolines: true, ..requested.options };
        let requested = SessionRequest { options, ..requested.clone() };
        match self.attach_as_asked(&unwinding, &requested, modules, places, None) {
            Err(Error::Patch(PatchError::Target(TargetError::NoCaller { why, .. }))) => Ok(refuse(&why)),
            other => other,
        }
    }
    /// Tells unwinders that were loaded since return trampolines were made. That waits until the loader is
    /// done with them and some thread can make the call. `fresh`: there are modules that were not looked at
    /// yet.
    pub(super) fn register_unwinders(&mut self, files: &mut Files, fresh: bool) {
        if self.attached.trampolines().is_none() || !(fresh || self.unregistered) {
            return;
        }
        self.unregistered = false;
        let registered = match unwinding(&self.process, files) {
            Ok(Unwinding { loading: Some(_), .. }) => {
                self.unregistered = true;
                return;
            }
            Ok(found) => match self.attached.unregistered(&found.unwinders) {
                new if new.is_empty() => Ok(()),
                new => self
                    .attached
                    .register_unwinders(&self.process, &new, &found.own_code)
                    .map_err(|e| e.to_string()),
            },
            Err(why) => Err(why),
        };
        if let Err(why) = registered {
            // It is tried again, since some thread may be able to make the call later.
            self.unregistered = true;
            let notice = format!("an unwinder that was loaded sees no further than a probed call: {why}");
            if !self.notices.contains(&notice) {
                self.notices.push(notice);
            }
        }
    }
    /// Attaches one batch. Returns the refusals, by index. `left_alone`: why no return address is replaced.
    fn attach_as_asked(
        &mut self,
        unwinding: &Unwinding,
        requested: &SessionRequest,
        modules: &[Module],
        places: &[ProbedPlace],
        left_alone: Option<&str>,
    ) -> Result<Vec<(usize, Refused)>, Error> {
        self.steps = requested.steps;
        let start = Instant::now();
        let tick = requested.tick.filter(|_| self.returns_decide());
        let requests = Requests::new(modules, places, self.is_guarded(modules), tick);
        let asked = requests.asked();
        let options = Options { faults_may_be_caught: self.held.is_blind(), ..requested.options };
        let request = Request {
            options,
            unwinders: &unwinding.unwinders,
            own_code: &unwinding.own_code,
            go: self.is_go,
            threads: self.threads,
            durations: Durations { go_g: self.go_g, ..requested.durations },
            ..requests.request(&asked, requests.filters(), requested)
        };
        let report = self.attached.add(&self.process, &request)?;
        self.costs.attach += start.elapsed();
        let tactics = tactics(&report);
        let segment = self.attached.segments().len().saturating_sub(1);
        for (probe, place) in (0u32..).zip(places).filter(|(_, place)| !is_hold(place)) {
            if let Some(&tactic) = tactics.get(&probe) {
                let latency = place.action.is_timed().then_some(probe);
                self.track(modules, place, tactic, Source::Counter { segment, index: probe, latency });
            }
        }
        let mut refused = refusals(&report, places);
        let start = Instant::now();
        let mut by_kernel = Vec::new();
        self.attach_kernel(modules, places, &report.kernel, &mut by_kernel);
        refused.extend(by_kernel);
        self.note_slow(&report);
        if let Some((have, wanted)) = report.small_rings {
            self.notices.push(format!(
                "rings of records have {} KiB instead of {} for each CPU: no more than an eighth of the memory that limits leave is taken; \
                 records that find theirs full are dropped, and counted",
                have >> 10,
                wanted >> 10
            ));
        }
        self.notices.extend(tails_notice(&report, places, left_alone));
        self.costs.attach += start.elapsed();
        self.costs.add_attach(&report);
        Ok(refused)
    }
    /// Explains why many functions are counted by kernel uprobes, if the user can do something about it.
    fn note_slow(&mut self, report: &AttachReport) {
        let kernel = report.kernel.len();
        if report.fault_handler && kernel > 0 {
            let pid = self.process.pid();
            self.notices.push(format!(
                "{kernel} places of process {pid} are probed by the kernel, at microseconds a hit: the process {} SIGSEGV \
                 or SIGBUS, so that instructions that may fault stay where they are; if its handler only reports and ends it, \
                 try --faults-are-fatal",
                if self.held.is_blind() { "may come to catch unseen (a static program without symbols)" } else { "catches" }
            ));
        }
    }
    pub(super) fn track(&mut self, modules: &[Module], place: &ProbedPlace, tactic: Tactic, source: Source) {
        let file = &modules[place.module].file;
        let key = key(modules, place);
        if let Some(&known) = self.keys.get(&key) {
            let known = &mut self.sites[known];
            known.sources.push(source);
            if known.site.tactic < tactic {
                Arc::make_mut(&mut known.site).tactic = tactic;
            }
            return;
        }
        let site = Site {
            probe: place.probe.clone(),
            aliases: place.aliases.clone(),
            file: file.path.clone(),
            offset: place.offset.0,
            label: place.label.clone(),
            tactic,
        };
        self.keys.insert(key, self.sites.len());
        self.sites.push(Tracked {
            site: Arc::new(site),
            action: place.action,
            filter: place.filter.clone(),
            values: place.values.clone(),
            asked: place.asked.clone(),
            sources: vec![source],
            last: 0,
            parts: HashMap::new(),
            settled: Default::default(),
        });
    }
    /// Takes all patches out. Counts can still be read afterwards.
    pub(crate) fn detach(&mut self, options: &Options) {
        if std::mem::replace(&mut self.detached, true) {
            return;
        }
        self.look_once_more();
        let start = Instant::now();
        self.links.iter_mut().for_each(UprobeMulti::detach);
        if !self.attached.segments().is_empty() && self.ended != Some(Ended::Exec) {
            self.restore(options);
            self.costs.detach = start.elapsed();
        }
    }
    fn restore(&mut self, options: &Options) {
        let report = self.attached.detach(&self.process, options);
        if report.gone {
            self.end(Ended::Exited);
        }
        for restored in &report.restored {
            if restored.pid != self.process.pid() {
                self.children.insert(restored.pid);
            }
            self.costs.add(&restored.batch);
            self.costs.left_mapped += restored.stays_mapped;
            let foreign = restored.left.iter().filter(|left| left.found.is_some());
            self.costs.foreign_sites += foreign.count() as u64;
            if let Some(why) = &restored.barred {
                let pid = restored.pid;
                self.costs.undone += 1;
                self.notices.push(format!(
                    "process {pid} may make no more calls for us: {why}; its code is as it was, but our signal handler and memory stay \
                     until it ends"
                ));
            }
        }
        for untouched in &report.untouched {
            let (pid, why) = (untouched.pid, &untouched.why);
            self.costs.undone += 1;
            self.notices
                .push(format!("could not detach from process {pid}: {why}; try: trapline detach -p {pid}"));
        }
    }
}
