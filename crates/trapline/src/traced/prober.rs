//! Looks at a process' modules, probes what is requested there, and probes it in another way where the
//! program changes what patches rely on.
//!
//! In: mappings, requests. Out: sites that are probed or refused; lines about what was not found. Invariants:
//! TRC-1, HLD-1. Does not: read counts, or notice how the process ends.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_patch::{PatchError, translator};
use trapline_record::control::fact;
use trapline_tracee::perf::monotonic_ns;
use trapline_tracee::{Mapping, Process};

use super::delivery::Delivery;
use super::held::{Change, Held};
use super::keyed_stacks::KeyedStacks;
use super::loads::Loads;
use super::patches::{Batch, BatchOutcome, Patches};
use super::site_table::SiteTable;
use super::stack_reader::StackReader;
use super::target_process::TargetProcess;
use super::thread_names::ThreadNames;
use crate::choose::{Chosen, choose};
use crate::error::Error;
use crate::files::Files;
use crate::maps::MapTable;
use crate::modules::{Mapped, Module, is_ours, mapped};
use crate::requests::batch_failed;
use crate::session_request::{HitAction, SessionRequest};
use crate::sites::NamedSites;

/// What a look found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// Modules that are new.
    New,
    /// None.
    Nothing,
    /// The process runs another program, which is probed as another process.
    Executed,
}

/// What a look uses and changes besides.
#[derive(Debug)]
pub(super) struct LookWith<'a> {
    pub(super) target: &'a mut TargetProcess,
    pub(super) names: &'a mut ThreadNames,
    pub(super) stacks: &'a mut Option<StackReader>,
    pub(super) keyed: &'a mut Option<KeyedStacks>,
    pub(super) misses: &'a mut Vec<String>,
    pub(super) notices: &'a mut Vec<String>,
}

/// What is probed in a process.
#[derive(Debug)]
pub(super) struct Prober {
    pub(super) loads: Loads,
    pub(super) patches: Patches,
    pub(super) sites: SiteTable,
    held: Held,
    delivery: Delivery,
}

/// A thread waits at least this long in a held call (`plan`'s `stub::hold`).
const LEAST_WAIT: Duration = Duration::from_millis(400);

/// The time in which sites are not probed, since they are being probed anew.
#[derive(Clone, Copy, Debug)]
struct Gap {
    begun: Instant,
    /// The thread that makes the change, which waits, was the only one. So no call is missed, and no thread is born.
    is_alone: bool,
}

/// Notice about a thread that may have made a change before its functions were probed anew.
fn too_slow_notice(pid: u32, change: Change) -> String {
    format!(
        "process {pid} may not have waited until its functions were probed anew ({}); hits of the moment after that may have been missed",
        change.reason()
    )
}

impl Prober {
    /// Nothing yet.
    pub(super) fn new(pid: u32, now: Instant) -> Self {
        Self {
            loads: Loads::new(pid),
            patches: Patches::new(now),
            sites: SiteTable::default(),
            held: Held::default(),
            delivery: Delivery::default(),
        }
    }
    /// Looks at modules that are new since the last call, and probes what is requested there.
    pub(super) fn look(
        &mut self,
        with: &mut LookWith<'_>,
        files: &mut Files,
        requested: &SessionRequest,
    ) -> Result<Looked, Error> {
        let mut began = None;
        // LOAD-3: before the mappings are read.
        let tickets = self.patches.tickets();
        let looked = self.look_from(with, files, requested, &mut began);
        self.loads.looked(began);
        if !tickets.is_empty() {
            let in_time = self.patches.attached.answer(&tickets);
            self.loads.came_to_rendezvous(in_time);
        }
        looked
    }
    /// `began`: when patching began, in nanoseconds of the monotonic clock.
    fn look_from(
        &mut self,
        with: &mut LookWith<'_>,
        files: &mut Files,
        requested: &SessionRequest,
        began: &mut Option<u64>,
    ) -> Result<Looked, Error> {
        self.loads.reads();
        let maps = with.target.process.maps()?;
        self.loads.read_records(with.target.pid());
        if self.loads.executed() || self.has_lost_segments(&maps) {
            // The follower probes the new program at its entry point.
            return Ok(Looked::Executed);
        }
        let process = &with.target.process;
        if matches!(requested.hit_action, HitAction::Stack { .. }) {
            with.stacks.get_or_insert_default().note_code(process, &maps);
        }
        if requested.maps.iter().any(MapTable::names_stacks) {
            let segments = self.patches.attached.segments();
            with.keyed.get_or_insert_default().note_code(process, &maps, segments);
        }
        self.loads.forget_unmapped(&maps, requested);
        let first = self.loads.is_first_look();
        let mapped = mapped(process, &maps);
        let fresh = self.loads.take_fresh(mapped.clone());
        self.held.forget(&fresh);
        let has_more = !fresh.is_empty() && !first;
        self.patches.register_unwinders(process, files, has_more, with.notices);
        if fresh.is_empty() {
            if first {
                with.misses.push(format!("process {} has mapped no program yet; try again", process.pid()));
            }
            return Ok(Looked::Nothing);
        }
        let (modules, mut places) = self.choose(with, files, requested, (&fresh, first), (&maps, &mapped));
        if places.found.is_empty() {
            self.sites.refuse(places.refused);
            return Ok(Looked::New);
        }
        // Each of these steps takes a while, and a thread may wait for all of them.
        self.patches.attached.show_alive();
        *began = Some(monotonic_ns());
        with.names.listen(with.target.pid(), requested);
        let gone = self.patch(with, files, requested, &modules, &mut places)?;
        self.patches.attached.show_alive();
        with.names.read(with.target, &mut self.sites, &self.patches.attached);
        with.names.note_all(with.target, self.patches.segments());
        if !first && !self.held.again() {
            self.loads.note_late(&modules, &places.found, &fresh, &gone);
        }
        Ok(Looked::New)
    }
    /// What is to be probed in new modules. `first`: no module was looked at before.
    fn choose(
        &mut self,
        with: &mut LookWith<'_>,
        files: &mut Files,
        requested: &SessionRequest,
        (fresh, first): (&[Mapped], bool),
        (maps, mapped): (&[Mapping], &[Mapped]),
    ) -> (Vec<Module>, NamedSites) {
        let process = &with.target.process;
        let chosen =
            choose(process, &with.target.name, files, requested, (maps, fresh), self.loads.matched());
        let Chosen { mut modules, mut places, misses, notices } = chosen;
        with.misses.extend(misses);
        with.notices.extend(notices);
        if let (true, Some(by)) = (places.found.is_empty(), translator(maps)) {
            // Translated code is not mapped as a program, so nothing else would explain why it has no such
            // function.
            *with.misses = vec![PatchError::Translated { pid: process.pid(), by }.to_string()];
        }
        self.held.keep_closed(&modules, &mut places);
        // Another library may come after what is probed, or be the first that is.
        if requested.waits_for_library() || !places.found.is_empty() || !self.patches.segments().is_empty() {
            self.held.request_holds(process, files, requested, mapped, &mut modules, &mut places.found);
            let of = (process, &self.patches);
            let maps = (maps, mapped);
            self.delivery.request(of, files, requested, maps, &mut modules, &mut places.found);
        }
        if !first {
            with.misses.clear();
        }
        with.target.note_program(&modules);
        (modules, places)
    }
    /// Whether the process has other memory than the one that was probed: it runs another program.
    pub(super) fn is_elsewhere(&self, process: &Process) -> bool {
        process.maps().is_ok_and(|maps| self.has_lost_segments(&maps))
    }
    /// Whether segments were made, and none is mapped any more.
    fn has_lost_segments(&self, maps: &[Mapping]) -> bool {
        !self.patches.segments().is_empty() && !maps.iter().any(is_ours)
    }
    /// Patches the places that were found. Returns the modules, by index, of which places are unmapped.
    fn patch(
        &mut self,
        with: &mut LookWith<'_>,
        files: &mut Files,
        requested: &SessionRequest,
        modules: &[Module],
        places: &mut NamedSites,
    ) -> Result<HashSet<usize>, Error> {
        let (is_blind, delivers) = (self.held.is_blind(), self.delivery.is_on);
        let batch = Batch { modules, places: &places.found, is_blind, delivers };
        let done = self.patches.attach(with.target, files, requested, &batch, with.notices);
        let (outcome, failed) = match done {
            Ok(outcome) => (outcome, None),
            Err(error) if error.is_gone() => return Err(error),
            Err(error) => {
                (BatchOutcome::refuse_all(&batch, |place| batch_failed(place, &error)), Some(error))
            }
        };
        for (index, tactic, source) in outcome.probed {
            self.sites.track(modules, &places.found[index], tactic, source);
        }
        self.loads.patched(self.patches.attached.holds_loads());
        let sorted = self.sites.sort_refusals(modules, &places.found, outcome.refused, self.held.again());
        if self.held.again() {
            self.held.note_lost(sorted.partly);
        } else if let Some((sites, first)) = sorted.partly {
            with.notices.push(format!(
                "{sites} sites are probed in one mapping of their file and not in another, where their hits are not seen; for example {}: {}",
                first.probe, first.reason
            ));
        }
        let mut refused = std::mem::take(&mut places.refused);
        refused.extend(sorted.new);
        self.sites.refuse(refused);
        failed.map_or(Ok(sorted.gone), Err)
    }
    /// Answers held calls and, at a `look`, finds changes that were made without asking. Returns whether the
    /// process was found to run another program.
    pub(super) fn answer(
        &mut self,
        with: &mut LookWith<'_>,
        files: &mut Files,
        requested: &SessionRequest,
        look: bool,
    ) -> bool {
        if self.patches.detached || self.patches.attached.relied_on() == 0 {
            return false;
        }
        let process = &with.target.process;
        let askers = self.patches.attached.askers();
        let Some(change) = Change::find(process, &self.patches.attached, look) else { return false };
        let mut executed = false;
        let is_alone = process.threads().is_ok_and(|threads| threads.len() == 1);
        let gap = Gap { begun: Instant::now(), is_alone };
        let pid = process.pid();
        let slow = || (gap.begun.elapsed() > LEAST_WAIT).then(|| too_slow_notice(pid, change));
        if change.facts == fact::FAULTS
            && self.deliver_anew(with, files, requested, (change, gap), &mut executed)
        {
            let process = &with.target.process;
            with.notices.extend(slow());
            let passed = self.patches.attached.let_pass(process, &askers, &requested.options);
            if matches!(passed, Ok(true)) || passed.is_err_and(|error| error.is_gone()) {
                return executed;
            }
        }
        let process = &with.target.process;
        match self.patches.attached.close(process, change.facts) {
            Ok(closed) => {
                self.patches.attached.show_alive();
                if closed.left > 0 {
                    with.notices.push(change.left_notice(process.pid(), closed.left));
                }
                let looked = self.probe_anew(with, files, requested, (change, gap), &closed.probes);
                executed = looked == Some(Looked::Executed);
                with.notices.extend(slow().filter(|_| looked.is_some()));
            }
            Err(error) if error.is_gone() => {}
            Err(error) => with.notices.push(format!("{}: {error}", change.reason())),
        }
        self.patches.attached.let_go();
        executed
    }
    /// Steps D10 to D12 of docs/design/faults.md: keeps up with handlers that the program sets. Returns false if
    /// that is not possible, and sites are to be probed in another way.
    fn deliver_anew(
        &mut self,
        with: &mut LookWith<'_>,
        files: &mut Files,
        requested: &SessionRequest,
        (change, gap): (Change, Gap),
        executed: &mut bool,
    ) -> bool {
        let process = &with.target.process;
        let Some(new) = self.delivery.change(process, &self.patches.attached, &requested.options) else {
            return false;
        };
        let Ok(closed) = self.patches.attached.make_way(process, &new) else {
            self.delivery.end_change();
            return false;
        };
        self.patches.attached.show_alive();
        let looked = self.probe_anew(with, files, requested, (change, gap), &closed.probes);
        *executed |= looked == Some(Looked::Executed);
        self.delivery.end_change();
        closed.left == 0 && new.iter().all(|handler| self.patches.attached.handles(*handler))
    }
    /// Probes the places again that have lost their patches; those for which there is another way get that.
    /// Returns what the look found, if there was one.
    fn probe_anew(
        &mut self,
        with: &mut LookWith<'_>,
        files: &mut Files,
        requested: &SessionRequest,
        (change, gap): (Change, Gap),
        closed: &HashSet<(usize, u32)>,
    ) -> Option<Looked> {
        let sites = self.sites.closed(closed);
        if sites.is_empty() {
            return None;
        }
        let all = sites.len() as u64;
        let (found, lost) = if change.has_another_way() {
            self.held.begin_again(sites);
            let (before, misses) = (self.loads.forget_looks(), with.misses.len());
            let looked = self.look(with, files, requested);
            with.misses.truncate(misses);
            self.loads.restore_looks(before);
            let found = looked.as_ref().ok().copied();
            (found, self.held.end_again(looked.map(drop), all).ok()?)
        } else {
            (None, Some(change.loses(all)))
        };
        let unseen = (!gap.is_alone).then(|| gap.begun.elapsed());
        with.notices.push(change.closed_notice(with.target.pid(), all, lost, unseen));
        found
    }
}
