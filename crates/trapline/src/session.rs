//! A session: probes in processes, from attach to detach.
//!
//! In: a [`Builder`]. Out: [`ProcessReport`]s while it runs, [`Finished`] at its end. Invariants: SES-1 whatever ends a
//! session (detach, drop, an error on the way) takes all patches out; SES-2 a process that cannot be traced stops the
//! session only if it was named by its pid. Does not: print, wait, handle signals.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use trapline_plan::filter::Late;
use trapline_target::{Interrupt, Interrupts, Launched, Process, TickClock, why_not_held};

use crate::builder::Builder;
use crate::calls::{Call, in_order};
use crate::decode::Clock;
use crate::error::Error;
use crate::files::Files;
use crate::follow::Following;
use crate::report::{By, Ended, ProcessReport, Refused, Summary, Unprobed};
use crate::saved::{self, tables::Round};
use crate::spread::Scale;
use crate::stacks::StackSum;
use crate::tallies::Tallied;
use crate::target::{Target, resolve};
use crate::traced::{Aim, Traced, Wishes};
use crate::tracers::why_not_followed;
use crate::unprobed::{nothing_had, with_follow};

/// How long a thread waits for an answer, mostly.
const ANSWER_EVERY: Duration = Duration::from_millis(10);
/// How often maps are read.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Probes at work.
#[derive(Debug)]
pub struct Session {
    wishes: Wishes,
    by: Option<By>,
    files: Files,
    traced: Vec<Traced>,
    launched: Option<Launched>,
    status: Option<ExitStatus>,
    following: Following,
    looked: Instant,
    clock: TickClock,
    notices: Vec<String>,
    /// Whole processes that are not probed.
    unprobed: Vec<Unprobed>,
    /// Records are saved: the number of the next process of which some are.
    saving: Option<u32>,
    /// Some that were saved are told by the next round that is.
    pending: bool,
}

/// What a session leaves.
#[derive(Debug)]
pub struct Finished {
    /// The last report of each process, counted after the last patch was out.
    pub reports: Vec<ProcessReport>,
    /// What to say at the end.
    pub summary: Summary,
    /// The launched command, if there was one.
    pub command: Option<Running>,
    /// What was recorded and not yet told, with calls that had not ended.
    pub calls: Vec<Call>,
    /// What the threads of [`calls`](Self::calls) are called, by process and thread; those that ended before their name was read are not there.
    pub names: HashMap<(u32, u32), String>,
    /// What was recorded and not yet saved, if that was begun: [`saved::end`] belongs behind it.
    pub saved: Vec<u8>,
    /// What was tallied; see [`Session::tallies`].
    pub tallies: Vec<Tallied>,
    /// Who called, by process and most first, when that was asked for with [`Builder::stacks`].
    pub stacks: Vec<StackSum>,
    /// Why nothing was ever probed, if nothing was: [`Error::NoMatch`] or [`Error::AllRefused`].
    pub nothing: Option<Error>,
}

/// A launched command that is no longer traced.
#[derive(Debug)]
pub struct Running {
    launched: Launched,
    status: Option<ExitStatus>,
}

impl Running {
    pub(crate) const fn new(launched: Launched) -> Self {
        Self { launched, status: None }
    }
    /// How it ended, if it has.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.status = self.status.or_else(|| self.launched.try_wait().ok().flatten());
        self.status
    }
}

impl Session {
    /// Describes a session.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
    pub(crate) fn start(builder: Builder, aim: Aim) -> Result<Self, Error> {
        builder.decides(aim)?;
        let timed = aim.is_timed();
        let mut session = Self {
            wishes: builder.wishes(aim),
            by: builder.by,
            files: Files::default(),
            traced: Vec::new(),
            launched: None,
            status: None,
            following: Following::new(builder.follow),
            looked: Instant::now(),
            clock: TickClock::start(),
            notices: Vec::new(),
            unprobed: Vec::new(),
            saving: None,
            pending: false,
        };
        if timed && !builder.min.is_zero() {
            let ticks = builder.min.as_nanos() as f64 / session.clock.ns_per_tick();
            session.wishes.durations.min_ticks = ticks.round() as u64;
        }
        if session.wishes.filters.iter().any(|filter| filter.is_late()) {
            session.wishes.tick = Some(Late::tick_of(session.clock.ns_per_tick()));
        }
        let scale =
            Scale::new(if timed && builder.steps.is_some() { session.clock.ns_per_tick() } else { 1.0 });
        if let Some(steps) = builder.steps.filter(|_| timed)
            && let Some(buckets) = steps.buckets(scale)
        {
            session.wishes.durations.buckets = buckets;
            session.wishes.steps = Some(steps);
        }
        if let Target::Launch(words) = &builder.target {
            session.launch(words)?;
        } else {
            let named = matches!(&builder.target, Target::Running { pids, .. } if !pids.is_empty());
            for process in resolve(&builder.target, &session.wishes.specs, &mut session.notices)? {
                session.add(process, named)?;
            }
            let asked_for = matches!(&builder.target, Target::Running { .. });
            session.traced.iter_mut().for_each(|traced| traced.is_asked_for = asked_for);
        }
        let launched = matches!(builder.target, Target::Launch(_));
        if !(launched || builder.follow) {
            session.check().map_err(|error| with_follow(error, false))?;
        }
        if builder.follow && !launched {
            for pid in session.traced.iter().map(|traced| traced.process.pid()).collect::<Vec<_>>() {
                if session.may_follow(pid) {
                    session.following.add(pid);
                }
            }
            let troubles = session.following.resume();
            session.notices.extend(troubles);
        }
        Ok(session)
    }
    /// Starts a command, probes it at its entry point, and lets it run: unprobed if that fails. Only what names nothing that it has is an error
    /// before it ran, as a mistyped word is.
    fn launch(&mut self, words: &[OsString]) -> Result<(), Error> {
        let Some((program, args)) = words.split_first() else { return Ok(()) };
        let command = || {
            let mut command = Command::new(program);
            command.args(args);
            command
        };
        let failed = |source| Error::Launch { command: program.to_string_lossy().into_owned(), source };
        let (launched, parked) = match Launched::start(command()) {
            Ok(started) => started,
            Err(error) => {
                let Some(why) = why_not_held(&error) else { return Err(failed(error)) };
                let launched = Launched::unheld(command()).map_err(failed)?;
                self.is_unprobed(launched.pid(), &why);
                self.launched = Some(launched);
                return Ok(());
            }
        };
        let pid = launched.pid();
        let mut launched = KillOnDrop(Some(launched));
        let Some(parked) = parked else {
            self.unprobed.push(Unprobed::new(
                pid,
                format!("{} ended before its first instruction", program.display()),
            ));
            self.launched = launched.0.take();
            return Ok(());
        };
        match Process::open(pid) {
            Ok(process) => self.add(process, false)?,
            Err(error) => self.is_unprobed(pid, &error),
        }
        if let Err(error @ Error::NoMatch { .. }) = self.check()
            && !self.following.wanted
            && self.unprobed.is_empty()
        {
            return Err(with_follow(error, true));
        }
        self.following.child = Some(pid);
        let troubles = self.following.resume();
        self.notices.extend(troubles);
        let may = self.may_follow(pid);
        self.following.let_go(parked, may).map_err(failed)?;
        self.notices.extend(self.following.take_strayed());
        self.launched = launched.0.take();
        Ok(())
    }
    /// What cannot be probed is an error if it `must` be, else told.
    fn add(&mut self, process: Process, must: bool) -> Result<(), Error> {
        let looked = Traced::new(process).map(|mut traced| {
            let looked = traced.look(&mut self.files, &self.wishes, &mut || {});
            (traced, looked)
        });
        match looked {
            Ok((traced, Ok(_))) => self.traced.push(traced),
            Ok((_, Err(error))) | Err(error) if must => return Err(error),
            // One of many, which has ended since it was found.
            Ok((_, Err(error))) | Err(error) if error.is_gone() => {}
            Ok((traced, Err(error))) => {
                self.is_unprobed(traced.process.pid(), &error);
                self.traced.push(traced);
            }
            Err(error) => self.notices.push(error.to_string()),
        }
        Ok(())
    }
    /// Whether a process can be followed; it is told if it cannot.
    fn may_follow(&mut self, pid: u32) -> bool {
        if !self.following.wanted {
            return false;
        }
        let Ok(process) = Process::open(pid) else { return true };
        let Some(why) = why_not_followed(&process, &mut self.files) else { return true };
        let name = trapline_target::comm(pid);
        self.notices.push(format!("{name} ({pid}) is not followed, nor are its children: {why}"));
        false
    }
    fn is_unprobed(&mut self, pid: u32, why: &dyn std::fmt::Display) {
        let one = Unprobed::new(pid, why.to_string());
        self.notices.push(one.line());
        self.unprobed.push(one);
    }
    /// Whether anything is probed at all.
    fn check(&self) -> Result<(), Error> {
        if self.traced.iter().any(|traced| traced.probed().next().is_some()) {
            return Ok(());
        }
        let refused: Vec<Refused> = self.traced.iter().flat_map(|traced| traced.refused().to_vec()).collect();
        // What hindered a whole process says more than why single functions were refused.
        let whole = refused.iter().find(|one| one.kind == "batch-failed");
        if let Some(first) = whole.or_else(|| refused.first().filter(|_| self.unprobed.is_empty())) {
            let example = format!("{}: {}", first.probe, first.reason);
            return Err(Error::AllRefused { matched: refused.len() as u64, example, refused });
        }
        let mut misses: Vec<String> = self.traced.iter().flat_map(|traced| traced.misses.clone()).collect();
        misses.sort();
        misses.dedup();
        misses.extend(self.notices.iter().cloned());
        if misses.is_empty() {
            // Programs that did not concern us are forgotten with what they lacked.
            let texts: Vec<&str> = self.wishes.specs.iter().map(|spec| spec.text.as_str()).collect();
            misses.push(nothing_had(&texts, &self.unprobed));
        }
        Err(Error::NoMatch { misses })
    }
    /// What probes did not find and what else a user should know now, each once.
    pub fn take_notices(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.notices);
        for traced in &mut self.traced {
            notices.append(&mut traced.misses);
            notices.append(&mut traced.notices);
        }
        let mut said = HashSet::new();
        notices.retain(|notice| said.insert(notice.clone()));
        notices
    }
    /// Looks for new modules, executed programs and processes that ended; false when nothing is left to trace. To be
    /// called a few times a second, and every few milliseconds when programs are followed (each waits for it), or where hits are told apart by their threads' names.
    /// A thread that is about to change what patches rely on waits for it too, some seconds at most.
    pub fn poll(&mut self) -> bool {
        self.probe_executed();
        let mut any = self.following.wanted && self.following.is_busy();
        let look = self.looked.elapsed() >= LOOK_EVERY;
        for index in 0..self.traced.len() {
            self.answer(index, look);
            match look || self.traced[index].hear_of_mappings() {
                true if self.traced[index].alive() => self.look(index),
                true => {}
                false => self.traced[index].hear_of_names(),
            }
            any |= self.traced[index].ended.is_none();
        }
        if look {
            self.looked = Instant::now();
        }
        let troubles = self.following.resume();
        self.notices.extend(troubles);
        if let Some(launched) = &mut self.launched
            && self.status.is_none()
        {
            self.status = launched.try_wait().ok().flatten();
        }
        // Children that outlive a launched command are of interest only when they are followed.
        any && (self.status.is_none() || self.following.wanted)
    }
    /// Waits for a signal that ends the run, at most so long, and no longer than until a process maps something: then [`poll`](Self::poll) has work.
    #[must_use]
    pub fn wait(&self, interrupts: &Interrupts, at_most: Duration) -> Option<Interrupt> {
        let mapped: Vec<i32> = self.traced.iter().flat_map(Traced::descriptors).collect();
        // A thread may wait for an answer.
        let holds = self.traced.iter().any(Traced::holds);
        interrupts.wait_beside(&mapped, if holds { at_most.min(ANSWER_EVERY) } else { at_most })
    }
    /// Lets threads go on that are about to change what patches rely on.
    fn answer(&mut self, index: usize, look: bool) {
        self.traced[index].answer(&mut self.files, &self.wishes, look, &mut self.following);
    }
    fn look(&mut self, index: usize) {
        let traced = &mut self.traced[index];
        if let Some(one) = traced.stay_in_bounds(&self.wishes.options) {
            self.notices.push(one.line());
            self.unprobed.push(one);
            return;
        }
        let traced = &mut self.traced[index];
        let following = &mut self.following;
        match traced.look(&mut self.files, &self.wishes, &mut || following.pause()) {
            Ok(_) => {}
            Err(error) if error.is_gone() => traced.end(Ended::Exited),
            Err(error) => traced.notices.push(error.to_string()),
        }
    }
    /// Programs that followed processes have executed: probes what is wanted there, and lets them run.
    fn probe_executed(&mut self) {
        let executed = self.following.executed();
        self.unprobed.extend(self.following.take_unparked());
        self.notices.extend(self.following.take_strayed());
        for parked in executed {
            let pid = parked.pid();
            let before = self.traced.iter_mut().filter(|traced| traced.process.pid() == pid);
            before.for_each(|traced| traced.end(Ended::Exec));
            match Process::open(pid) {
                Ok(process) => {
                    // What does not concern the new program is no trouble: it is one of many.
                    let notices = self.notices.len();
                    if let Err(error) = self.add(process, false)
                        && !error.is_gone()
                    {
                        self.is_unprobed(pid, &error);
                    }
                    self.notices.truncate(notices);
                    if let Some(traced) = self.traced.last_mut().filter(|traced| traced.process.pid() == pid)
                    {
                        traced.misses.clear();
                    }
                    self.traced.retain(|traced| traced.ended.is_some() || traced.concerns_us());
                }
                Err(error) if error.is_gone() => continue,
                Err(error) => self.unprobed.push(Unprobed::new(pid, error.to_string())),
            }
            let may = self.may_follow(pid);
            if let Err(error) = self.following.let_go(parked, may)
                && Process::open(pid).is_ok()
            {
                self.notices.push(format!("process {pid} could not be let go: {error}"));
            }
        }
    }
    /// Counts or durations since attach, process by process.
    pub fn report(&mut self) -> Vec<ProcessReport> {
        let scale = Scale::new(self.clock.ns_per_tick());
        // Only counters are split; tables tell themselves whose their hits are.
        let (timed, by) = (self.wishes.aim.is_timed(), self.by.filter(|_| self.wishes.aim == Aim::Count));
        self.traced.iter_mut().map(|traced| traced.report(scale, timed, by, true)).collect()
    }
    /// The same, read in between: hits are not split, and the interval of the next [`report`](Self::report) goes on.
    pub fn totals(&mut self) -> Vec<ProcessReport> {
        let (scale, timed) = (Scale::new(self.clock.ns_per_tick()), self.wishes.aim.is_timed());
        self.traced.iter_mut().map(|traced| traced.report(scale, timed, None, false)).collect()
    }
    /// What was recorded since the last call, in the order in which it ended; see [`Builder::record`]. To be called often: what does
    /// not fit into the rings meanwhile is dropped, and counted.
    pub fn calls(&mut self) -> Vec<Call> {
        let (clock, until) = (self.clock(), Some(TickClock::ticks()));
        let mut calls = Vec::new();
        for traced in &mut self.traced {
            traced.each_call(clock, until, &mut |call| calls.push(call));
        }
        in_order(&mut calls);
        calls
    }
    /// The same one by one, without keeping them, where there is one process. How many records that were.
    pub fn each_call(&mut self, mut each: impl FnMut(&Call)) -> usize {
        if self.traced.len() == 1 {
            let (clock, until) = (self.clock(), Some(TickClock::ticks()));
            return self.traced[0].each_call(clock, until, &mut |call| each(&call));
        }
        let calls = self.calls();
        calls.iter().for_each(each);
        calls.len()
    }
    fn clock(&self) -> Clock {
        (self.clock.started(), self.clock.ns_per_tick())
    }
    /// Begins to save what is recorded, instead of telling it: the file's first bytes, with what the program that reads it
    /// ([`Saved`](crate::saved::Saved)) is to know besides.
    #[must_use]
    pub fn save_begin(&mut self, note: &[u8]) -> Vec<u8> {
        self.saving.get_or_insert(0);
        saved::begin(self.clock(), note)
    }
    /// Writes what was recorded since the last call, as it lay in the rings: many times as fast as [`calls`](Self::calls). How many
    /// records that were.
    ///
    /// # Errors
    /// What `write` says; what was to be written is gone then.
    pub fn save<E>(&mut self, write: &mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<usize, E> {
        let until = Some(TickClock::ticks());
        self.save_round(until, write)
    }
    fn save_round<E>(
        &mut self,
        until: Option<u64>,
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let (mut next, mut taken) = (self.saving.unwrap_or(0), 0);
        let done = self.traced.iter_mut().try_for_each(|traced| {
            taken += traced.save(&mut next, until.is_none(), write)?;
            Ok::<(), E>(())
        });
        self.saving = Some(next);
        done?;
        if taken > 0 || self.pending || until.is_none() {
            self.pending = taken > 0;
            let clock = self.clock();
            let processes = u32::try_from(self.traced.len()).unwrap_or(u32::MAX);
            write(&Round { clock, processes, until }.put())?;
        }
        Ok(taken)
    }
    /// What was tallied since attach, site by site; see [`Builder::tally`].
    pub fn tallies(&mut self) -> Vec<Tallied> {
        let by = self.by;
        self.traced.iter_mut().flat_map(|traced| traced.tallies(by)).collect()
    }
    /// Processes, by pid, whose calls are goroutines': a call may end, and call others, on another thread than it began on.
    #[must_use]
    pub fn goroutines(&self) -> Vec<u32> {
        self.traced.iter().filter(|traced| traced.is_go).map(|traced| traced.process.pid()).collect()
    }
    /// What the thread of a call is called, if it lives or was asked for before.
    pub fn thread_name(&mut self, call: &Call) -> Option<String> {
        self.name(call.pid, call.tid)
    }
    fn name(&mut self, pid: u32, tid: u32) -> Option<String> {
        self.traced
            .iter_mut()
            .filter(|traced| traced.process.pid() == pid)
            .find_map(|traced| traced.thread_name(tid))
    }
    fn names_of(&mut self, calls: &[Call]) -> HashMap<(u32, u32), String> {
        let threads: HashSet<(u32, u32)> = calls.iter().map(|call| (call.pid, call.tid)).collect();
        threads.into_iter().filter_map(|(pid, tid)| Some(((pid, tid), self.name(pid, tid)?))).collect()
    }
    /// Takes all patches out and tells what was counted and what is left.
    #[must_use]
    pub fn detach(mut self) -> Finished {
        self.probe_executed();
        self.following.stop();
        for traced in &mut self.traced {
            traced.alive();
            traced.end_looks(&self.wishes);
            traced.detach(&self.wishes.options);
        }
        let nothing = self.check().err();
        let (start, ns) = (self.clock.started(), self.clock.ns_per_tick());
        let (mut calls, mut saved) = (Vec::new(), Vec::new());
        if self.saving.is_some() {
            let Ok(_) = self.save_round(None, &mut |bytes: &[u8]| {
                saved.extend_from_slice(bytes);
                Ok::<(), std::convert::Infallible>(())
            });
        } else {
            for traced in &mut self.traced {
                traced.each_call((start, ns), None, &mut |call| calls.push(call));
            }
        }
        let names = self.names_of(&calls);
        let tallies = self.tallies();
        let stacks = self.traced.iter().flat_map(|t| t.stack_sums(ns)).collect();
        let reports = self.report();
        // What is summed up is read of memory that is then given back.
        let mut summary = self.summary();
        let options = self.wishes.options;
        summary.left_resident = self.traced.iter_mut().map(|traced| traced.forget(&options)).sum();
        let there = self.traced.iter().filter(|traced| traced.ended.is_none());
        summary.left_mapped = there.map(|traced| traced.costs.left_mapped).sum();
        summary.notices.extend(self.take_notices());
        let status = self.status;
        let command = self.launched.take().map(|launched| Running { launched, status });
        Finished { reports, summary, command, nothing, calls, names, saved, tallies, stacks }
    }
    fn summary(&mut self) -> Summary {
        let mut summary = Summary { notices: self.take_notices(), ..Summary::default() };
        summary.unprobed.clone_from(&self.unprobed);
        for traced in &self.traced {
            summary.processes += 1;
            summary.notices.extend(traced.record_notices().into_iter().chain(traced.notice_of_children()));
            summary.ended += u64::from(traced.ended.is_some());
            let killed = traced.is_asked_for && matches!(traced.ended, Some(Ended::Killed { .. }));
            summary.killed += u64::from(killed);
            summary.children += traced.forked();
            summary.matched += (traced.probed().count() + traced.refused().len()) as u64;
            traced.probed().for_each(|site| summary.patched.add(site.tactic));
            summary.refused.extend_from_slice(traced.refused());
            let (ours, kernel) = traced.total_hits();
            summary.hits += ours + kernel;
            summary.missed += traced.missed();
            if let Some(more) = traced.all_filtered() {
                let sum = summary.filtered.get_or_insert_default();
                sum.in_target += more.in_target;
                sum.by_reader += more.by_reader;
                sum.unended += more.unended;
            }
            summary.guard_traps += traced.guard_hits();
            let costs = traced.costs;
            summary.interrupted_syscalls += costs.interrupted;
            summary.restarted_timeouts += costs.restarted;
            summary.longest_stop = summary.longest_stop.max(costs.longest_stop);
            summary.attach_time += costs.attach;
            summary.detach_time += costs.detach;
            summary.memory_sites += costs.memory.sites;
            summary.memory_per_cpu += costs.memory.per_cpu;
            summary.left_mapped += if traced.ended.is_some() { 0 } else { costs.left_mapped };
            summary.foreign_sites += costs.foreign_sites;
            let overwritten = traced.overwritten();
            summary.overwritten.sites += overwritten.sites;
            summary.overwritten.longest = summary.overwritten.longest.max(overwritten.longest);
            summary.undone += costs.undone;
        }
        summary
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.following.stop();
        self.traced.iter_mut().for_each(|traced| traced.detach(&self.wishes.options));
    }
}

/// A command that must not run if it cannot be probed.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Option<Launched>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(launched) = &mut self.0 {
            launched.kill();
        }
    }
}
