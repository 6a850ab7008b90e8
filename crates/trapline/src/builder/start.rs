//! What a description of a session is made into: a session, by what is to happen at each hit; a listing; prototypes.
//!
//! In: a [`Builder`]. Out: a [`Session`] that has begun, or what can be said without one. Does not: check single options.

use std::sync::Arc;

use trapline_image::ProbeKind;
use trapline_patch::{Durations, Options};
use trapline_plan::{Floats, KernelUprobes};
use trapline_tracee::kernel::UprobeMulti;

use super::Builder;
use crate::arch::CAN_WAIT;
use crate::calls::OPERANDS;
use crate::declaration::NotesByFile;
use crate::error::Error;
use crate::filter::{Filter, Undecided};
use crate::form::Returns;
use crate::listing::{self, Listing};
use crate::prototypes::{self, ProbedFunction};
use crate::report::By;
use crate::session::{Session, Setup};
use crate::session_request::{HitAction, SessionRequest};
use crate::stacks::Unwinding;
use crate::target::Target;

/// Ring size for stacks, in bytes: room for tens of thousands of stacks, or thousands of copies.
const STACKS_RING: u32 = 32 << 20;

impl Builder {
    /// Starts counting.
    ///
    /// # Errors
    /// If no process can be traced, or nothing can be probed; nothing is left behind then.
    pub fn count(self) -> Result<Session, Error> {
        self.start(HitAction::Count)
    }
    /// Starts timing.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn latency(self) -> Result<Session, Error> {
        let hit_action = self.timing();
        self.start(hit_action)
    }
    /// Starts recording each hit: with the first `arguments` integer arguments of a function (six at most), or
    /// arguments of a USDT probe, and, if `returns`, with what it returned and when. [`Session::calls`] reports them.
    /// Values that filters need later, at the return or in the reader, are recorded too: then there may be more
    /// arguments, and more [`floats`](Self::floats), than requested.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn record(mut self, arguments: u8, returns: bool) -> Result<Session, Error> {
        let needed = self.filters.iter().map(Filter::arguments).max().unwrap_or(0);
        let floats: Vec<Floats> = self.filters.iter().map(Filter::floats).collect();
        if self.floats.len() < floats.len() {
            self.floats.resize(floats.len(), Floats::default());
        }
        self.floats.iter_mut().zip(floats).for_each(|(asked, needed)| *asked = asked.and(needed));
        self.start(HitAction::Record { values: arguments.max(needed).min(OPERANDS as u8), returns })
    }
    /// Starts aggregating: [`filters`](Self::filters) say what, see [`Filter::tally`]. [`Session::tallies`]
    /// reports the result.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn tally(self, exits: bool) -> Result<Session, Error> {
        self.start(HitAction::Tally { exits })
    }
    /// Starts recording entries and returns of functions as single words: which function, when, and by which thread, and
    /// only what [`values`](Self::values) says besides. [`Session::save`] takes them, and [`Recorded`](crate::recorded::Recorded) reads them;
    /// [`Session::calls`] does not. With `lossless`, a thread that finds its ring full waits for that, for at most a second
    /// while the session takes nothing; then it goes on, and calls are lost until the session takes records again.
    ///
    /// # Errors
    /// As [`Self::count`]; if the threads of a process lack what that needs; and [`Error::NoWaiting`].
    pub fn record_words(mut self, lossless: bool) -> Result<Session, Error> {
        if lossless && !CAN_WAIT {
            return Err(Error::NoWaiting);
        }
        (self.compact, self.lossless) = (true, lossless);
        self.start(HitAction::Record { values: 0, returns: true })
    }
    /// Starts recording the stack of each hit. With `time`, the durations of the calls are summed as well,
    /// from entry to return, and reports have each function's durations beside its hits. [`Session::calls`]
    /// takes the records out and returns none; [`Finished::stacks`](crate::Finished::stacks) has the sums.
    ///
    /// # Errors
    /// As [`Self::count`].
    pub fn stacks(self, unwinding: Unwinding, time: bool) -> Result<Session, Error> {
        self.start(HitAction::Stack { unwind: unwinding.unwind(), returns: time })
    }
    /// Lists the places that the probes mean, and how each would be reached. With `timed`, they are planned
    /// as [`Builder::latency`] would patch them. Without a target, only files are looked at.
    ///
    /// # Errors
    /// If a process or file cannot be opened, or nothing is found.
    pub fn list(&self, timed: bool) -> Result<Listing, Error> {
        self.listed(timed, None)
    }
    /// The same, with what each function takes and returns.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn list_declared(&self, timed: bool) -> Result<Listing, Error> {
        self.listed(timed, Some(NotesByFile::with(&self.progress)))
    }
    fn listed(&self, timed: bool, notes: Option<NotesByFile>) -> Result<Listing, Error> {
        let hit_action = if timed { self.timing() } else { HitAction::Count };
        // Where probes go does not depend on filters.
        let requested =
            SessionRequest { filters: Vec::new(), actions: Vec::new(), ..self.requested(hit_action) };
        listing::list(&self.target, &requested, notes)
    }
    /// For each probe, the functions and USDT probes that it means. Empty if nothing that it means can be
    /// looked at, if a glob means too many functions, or if several processes might give a glob without a
    /// file different meanings.
    #[must_use]
    pub fn prototypes(&self) -> Vec<Vec<ProbedFunction>> {
        let requested = self.requested(HitAction::Record { values: 0, returns: false });
        prototypes::find(&self.target, &requested)
    }
    fn start(self, hit_action: HitAction) -> Result<Session, Error> {
        self.decides(hit_action)?;
        let requested = self.requested(hit_action);
        let Self { target, by, follow, min, steps, .. } = self;
        Session::start(Setup { target, requested, by, follow, min, steps })
    }
    /// Action for timed calls.
    const fn timing(&self) -> HitAction {
        match (self.returns, self.outermost) {
            (Returns::Auto, true) => HitAction::Time(Returns::Exits),
            (returns, _) => HitAction::Time(returns),
        }
    }
    /// # Errors
    /// [`Error::Filter`]: a filter that neither the target nor the reader could decide.
    fn decides(&self, hit_action: HitAction) -> Result<(), Error> {
        let by_thread = self.counts_by_thread(hit_action);
        let requested = self.requested(hit_action);
        for (nth, (spec, filter)) in self.specs.iter().zip(&self.filters).enumerate() {
            let action = requested.action_of(nth).action(spec.kind == ProbeKind::Return, None);
            if let Some(why) = Undecided::of(filter, action, by_thread) {
                return Err(Error::Filter { probe: spec.text.clone(), why });
            }
        }
        Ok(())
    }
    fn counts_by_thread(&self, hit_action: HitAction) -> bool {
        hit_action == HitAction::Count && matches!(self.by, Some(By::Thread | By::ThreadName))
    }
    fn requested(&self, hit_action: HitAction) -> SessionRequest {
        let kernel_uprobes = match UprobeMulti::available().is_ok() {
            true if self.kernel_uprobes => KernelUprobes::Asked,
            // The kernel records nothing, so a session that records has no use for it.
            true if self.actions.is_empty() => KernelUprobes::NotAsked,
            _ => KernelUprobes::Unavailable,
        };
        let by_thread = self.counts_by_thread(hit_action);
        let options = Options {
            strict: self.strict,
            faults_are_fatal: self.faults_are_fatal,
            kernel_uprobes,
            by_thread,
            compact: self.compact,
            ..Options::default()
        };
        let ring = if matches!(hit_action, HitAction::Stack { .. }) { STACKS_RING } else { options.ring };
        let (ring, trampolines) = (self.ring.unwrap_or(ring), self.maxactive.unwrap_or(options.trampolines));
        let options = Options { ring, trampolines, ..options };
        let durations = Durations { outermost: self.outermost, ..Durations::default() };
        let filters = self.filters.iter().cloned().map(Arc::new).collect();
        SessionRequest {
            waits: self.follow || self.wait || matches!(self.target, Target::All(_)),
            specs: self.specs.clone(),
            hit_action,
            returns: self.returns,
            by: self.by,
            options,
            lossless: self.lossless,
            values: self.values.clone(),
            libcalls: self.libcalls,
            durations,
            tick: None,
            steps: None,
            filters,
            texts: self.texts.clone(),
            floats: self.floats.clone(),
            ended: self.ended.clone(),
            notes_code: self.notes_code,
            maps: self.maps.clone(),
            follows_threads: self.follows_threads,
            everyone: None,
            namer: self.namer.clone(),
            actions: self.actions.clone(),
            debug_folders: Arc::clone(&self.debug_folders),
            progress: self.progress.clone(),
            most: None,
            left_out: self.left_out.clone(),
            budget: self.budget,
        }
    }
}
