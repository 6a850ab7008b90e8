//! A session: probes in processes, from attach to detach.
//!
//! In: a [`Builder`]. Out: [`ProcessReport`]s while it runs, [`Finished`] at its end. Invariants: SES-1 a
//! session takes all its patches out, however it ends (detach, drop, or an error on the way). SES-2 a process
//! that cannot be traced stops the session only if the user named it by its pid, and only if it has not just
//! ended while others go on. Does not: print, wait, handle signals.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use trapline_plan::filter::Late;
use trapline_tracee::{Interrupt, Interrupts, Launched, Process, TickClock, why_not_held};

use crate::builder::Builder;
use crate::calls::{Call, in_order};
use crate::decode::Clock;
use crate::error::Error;
use crate::files::Files;
use crate::follow::Following;
use crate::histogram::Scale;
use crate::report::{By, Ended, ProcessReport, Refused, Summary, Unprobed};
use crate::saved::{self, tables::Round};
use crate::stacks::StackSum;
use crate::tallies::Tallied;
use crate::target::{Several, Target, gone_notice, resolve};
use crate::traced::{HitAction, Past, ReportOptions, SessionRequest, Shared, Traced};
use crate::tracers::why_not_followed;
use crate::unprobed::{nothing_had, with_follow};

/// Longest wait between two looks for threads that wait for an answer.
const ANSWER_EVERY: Duration = Duration::from_millis(10);
/// How often the maps of the processes are read.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A running session.
#[derive(Debug)]
pub struct Session {
    requested: SessionRequest,
    by: Option<By>,
    files: Files,
    traced: Vec<Traced>,
    /// Followed processes that have ended; the summary of all of them; and what they have in common.
    past: Vec<Past>,
    past_summary: Summary,
    shared: Shared,
    /// Number that the next process gets.
    next: u32,
    launched: Option<Launched>,
    status: Option<ExitStatus>,
    following: Following,
    looked: Instant,
    clock: TickClock,
    notices: Vec<String>,
    /// Processes in which nothing is probed at all.
    unprobed: Vec<Unprobed>,
    /// Number that the next process gets in the recording; `None` until saving has begun.
    saving: Option<u32>,
    /// Records were saved that no round's block has closed yet; the next round is written even if it is
    /// empty.
    pending: bool,
}

/// What a session returns at its end.
#[derive(Debug)]
pub struct Finished {
    /// The last report of each process, counted after the last patch was out.
    pub reports: Vec<ProcessReport>,
    /// Totals of the whole session.
    pub summary: Summary,
    /// The launched command, if there was one.
    pub command: Option<Running>,
    /// Calls that were recorded and not reported yet, including calls that had not ended.
    pub calls: Vec<Call>,
    /// Thread names for [`calls`](Self::calls), by process and thread. A thread that ended before its name
    /// was read is not in it.
    pub names: HashMap<(u32, u32), String>,
    /// Bytes that were recorded and not saved yet, if saving was begun. [`saved::end`] must follow them in
    /// the file.
    pub saved: Vec<u8>,
    /// Aggregations; see [`Session::tallies`].
    pub tallies: Vec<Tallied>,
    /// Callers, by process, most calls first; filled if [`Builder::stacks`] asked for them.
    pub stacks: Vec<StackSum>,
    /// Why nothing was ever probed, if that is so: [`Error::NoMatch`] or [`Error::AllRefused`].
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
    /// Exit status of the command; `None` while it runs.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.status = self.status.or_else(|| self.launched.try_wait().ok().flatten());
        self.status
    }
}

impl Session {
    /// Starts the description of a session.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }
    pub(crate) fn start(builder: Builder, hit_action: HitAction) -> Result<Self, Error> {
        builder.decides(hit_action)?;
        let timed = hit_action.is_timed();
        let mut session = Self {
            requested: builder.requested(hit_action),
            by: builder.by,
            files: Files::default(),
            traced: Vec::new(),
            past: Vec::new(),
            past_summary: Summary::default(),
            shared: Shared::default(),
            next: 0,
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
            session.requested.durations.min_ticks = ticks.round() as u64;
        }
        if session.requested.filters.iter().any(|filter| filter.is_late()) {
            session.requested.tick = Some(Late::tick_of(session.clock.ns_per_tick()));
        }
        let scale =
            Scale::new(if timed && builder.steps.is_some() { session.clock.ns_per_tick() } else { 1.0 });
        if let Some(steps) = builder.steps.filter(|_| timed)
            && let Some(buckets) = steps.buckets(scale)
        {
            session.requested.durations.buckets = buckets;
            session.requested.steps = Some(steps);
        }
        if let Target::Launch(words) = &builder.target {
            session.launch(words)?;
        } else {
            let named = matches!(&builder.target, Target::Running { pids, .. } if !pids.is_empty());
            let processes = resolve(&builder.target, &session.requested.specs, &mut session.notices)?;
            let mut several = Several::new(processes.len());
            for process in processes {
                let pid = process.pid();
                let added = session.add(process, named);
                if several.one(pid, added)?.is_none() {
                    session.notices.push(gone_notice(pid));
                }
            }
            let asked_for = matches!(&builder.target, Target::Running { .. });
            session.traced.iter_mut().for_each(|traced| traced.is_asked_for = asked_for);
            several.end(session.traced.len())?;
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
    /// Starts a command, probes it at its entry point, and lets it run. If probing fails, the command runs
    /// unprobed. A probe that matches nothing, such as a mistyped name, is an error before the command runs;
    /// not where programs are followed, since a later one may match.
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
    /// Adds a process to the session. A process that cannot be probed is an error if `must` is set, and a
    /// notice otherwise.
    fn add(&mut self, process: Process, must: bool) -> Result<(), Error> {
        let nth = self.next;
        self.next += 1;
        let looked = Traced::new(process, nth).map(|mut traced| {
            let looked = traced.look(&mut self.files, &self.requested, &mut || {});
            (traced, looked)
        });
        match looked {
            Ok((traced, Ok(_))) => self.traced.push(traced),
            Ok((_, Err(error))) | Err(error) if must => return Err(error),
            // One of many processes, and it has ended since it was found.
            Ok((_, Err(error))) | Err(error) if error.is_gone() => {}
            Ok((traced, Err(error))) => {
                self.is_unprobed(traced.process.pid(), &error);
                self.traced.push(traced);
            }
            Err(error) => self.notices.push(error.to_string()),
        }
        Ok(())
    }
    /// Whether a process can be followed; adds a notice if it cannot.
    fn may_follow(&mut self, pid: u32) -> bool {
        if !self.following.wanted {
            return false;
        }
        let Ok(process) = Process::open(pid) else { return true };
        let Some(why) = why_not_followed(&process, &mut self.files) else { return true };
        let name = trapline_tracee::comm(pid);
        self.notices.push(format!("{name} ({pid}) is not followed, nor are its children: {why}"));
        false
    }
    fn is_unprobed(&mut self, pid: u32, why: &dyn std::fmt::Display) {
        let one = Unprobed::new(pid, why.to_string());
        self.notices.push(one.line());
        self.unprobed.push(one);
    }
    /// Fails if nothing is probed at all.
    fn check(&self) -> Result<(), Error> {
        if self.past_summary.patched.total() > 0
            || self.traced.iter().any(|traced| traced.probed().next().is_some())
        {
            return Ok(());
        }
        let past = self.past.iter().flat_map(Past::refused);
        let refused: Vec<Refused> =
            past.chain(self.traced.iter().flat_map(Traced::refused)).cloned().collect();
        // What hindered a whole process explains more than why single functions were refused.
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
            // Programs in which no probe matched are forgotten, and so are their misses.
            let texts: Vec<&str> = self.requested.specs.iter().map(|spec| spec.text.as_str()).collect();
            misses.push(nothing_had(&texts, &self.unprobed));
        }
        Err(Error::NoMatch { misses })
    }
    /// Takes the notices: which probes found nothing, and what else a user should know now. Each appears
    /// once.
    pub fn take_notices(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.notices);
        for traced in &mut self.traced {
            notices.append(&mut traced.misses);
            notices.append(&mut traced.notices);
        }
        let mut seen = HashSet::new();
        notices.retain(|notice| seen.insert(notice.clone()));
        notices
    }
    /// Looks for new modules, executed programs and processes that ended. Returns false when nothing is left
    /// to trace. Call it a few times a second. Call it every few milliseconds where programs are followed
    /// (each new one waits for it), or where hits are grouped by thread name. A thread that is about to
    /// change what patches rely on waits for it too, for some seconds at most.
    pub fn poll(&mut self) -> bool {
        self.probe_executed();
        let mut any = self.following.wanted && self.following.is_busy();
        let look = self.looked.elapsed() >= LOOK_EVERY;
        for index in 0..self.traced.len() {
            self.answer(index, look);
            match look || self.traced[index].read_mappings() {
                true if self.traced[index].alive() => self.look(index),
                true => {}
                false => self.traced[index].read_names(),
            }
            any |= self.traced[index].ended.is_none();
        }
        if look {
            self.looked = Instant::now();
            self.part_with_ended();
        }
        let troubles = self.following.resume();
        self.notices.extend(troubles);
        if let Some(launched) = &mut self.launched
            && self.status.is_none()
        {
            self.status = launched.try_wait().ok().flatten();
        }
        // Children that outlive a launched command matter only when they are followed.
        any && (self.status.is_none() || self.following.wanted)
    }
    /// Reduces followed processes that have ended to what reports need.
    fn part_with_ended(&mut self) {
        if !self.following.wanted {
            return;
        }
        let report_options = ReportOptions { rows_by: self.by, ..self.report_options() };
        for mut traced in self.traced.extract_if(.., Traced::is_past).collect::<Vec<_>>() {
            self.notices.append(&mut traced.misses);
            self.notices.append(&mut traced.notices);
            let (past, summary) = traced.leave(report_options, &mut self.shared);
            self.past.push(past);
            self.past_summary.add(&summary);
        }
    }
    fn report_options(&self) -> ReportOptions {
        // Only counters are split here; a table's rows name their thread or key themselves.
        let by = self.by.filter(|_| self.requested.hit_action == HitAction::Count);
        let scale = Scale::new(self.clock.ns_per_tick());
        ReportOptions { scale, timed: self.requested.hit_action.is_timed(), by, rows_by: None }
    }
    /// Waits for a signal that ends the run, for at most `at_most`, and no longer than until a process maps
    /// something: then [`poll`](Self::poll) has work.
    #[must_use]
    pub fn wait(&self, interrupts: &Interrupts, at_most: Duration) -> Option<Interrupt> {
        let mapped: Vec<i32> = self.traced.iter().flat_map(Traced::descriptors).collect();
        // A held call may wait for an answer.
        let holds = self.traced.iter().any(Traced::holds);
        interrupts.wait_beside(&mapped, if holds { at_most.min(ANSWER_EVERY) } else { at_most })
    }
    /// Lets threads go on whose held calls are about to change what patches rely on.
    fn answer(&mut self, index: usize, look: bool) {
        self.traced[index].answer(&mut self.files, &self.requested, look, &mut self.following);
    }
    fn look(&mut self, index: usize) {
        let traced = &mut self.traced[index];
        if let Some(one) = traced.stay_in_bounds(&self.requested.options) {
            self.notices.push(one.line());
            self.unprobed.push(one);
            return;
        }
        let traced = &mut self.traced[index];
        let following = &mut self.following;
        match traced.look(&mut self.files, &self.requested, &mut || following.pause()) {
            Ok(_) => {}
            Err(error) if error.is_gone() => traced.end(Ended::Exited),
            Err(error) => traced.notices.push(error.to_string()),
        }
    }
    /// Probes the programs that followed processes have executed, and lets them run.
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
                    // A new program in which no probe matches is no trouble: it is one of many.
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
    /// Counts or durations since attach, one report for each process.
    pub fn report(&mut self) -> Vec<ProcessReport> {
        let by = self.report_options().by;
        self.reports(by, true)
    }
    /// The same values, read between two reports: hits are not split, and the interval of the next
    /// [`report`](Self::report) goes on.
    pub fn totals(&mut self) -> Vec<ProcessReport> {
        self.reports(None, false)
    }
    fn reports(&mut self, by: Option<By>, ends: bool) -> Vec<ProcessReport> {
        let ReportOptions { scale, timed, .. } = self.report_options();
        let past = self.past.iter_mut().map(|past| past.report(ends));
        let there = self.traced.iter_mut().map(|traced| traced.report(scale, timed, by, ends));
        let mut reports: Vec<ProcessReport> = past.chain(there).collect();
        reports.sort_by_key(|report| report.nth);
        reports
    }
    /// Calls that were recorded since the last call, in the order in which they ended; see
    /// [`Builder::record`]. Call this often: records that find a ring full meanwhile are dropped, and
    /// counted.
    pub fn calls(&mut self) -> Vec<Call> {
        let (clock, until) = (self.clock(), Some(TickClock::ticks()));
        let mut calls = Vec::new();
        for traced in &mut self.traced {
            traced.each_call(clock, until, &mut |call| calls.push(call));
        }
        in_order(&mut calls);
        calls
    }
    /// Hands the same calls on one by one; where there is one process, without keeping them. Returns the
    /// number of records read.
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
    /// Begins to save records instead of reporting them. Returns the file's first bytes. `note` is stored
    /// with them, for the program that reads the file ([`Saved`](crate::saved::Saved)).
    #[must_use]
    pub fn save_begin(&mut self, note: &[u8]) -> Vec<u8> {
        self.saving.get_or_insert(0);
        saved::begin(self.clock(), note)
    }
    /// Writes what was recorded since the last call, as it lay in the rings. This is many times as fast as
    /// [`calls`](Self::calls). Returns the number of records.
    ///
    /// # Errors
    /// Whatever `write` returns; the bytes that it was given are lost then.
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
            let processes = u32::try_from(self.traced.len() + self.past.len()).unwrap_or(u32::MAX);
            write(&Round { clock, processes, until }.put())?;
        }
        Ok(taken)
    }
    /// Aggregations since attach, site by site; see [`Builder::tally`].
    pub fn tallies(&mut self) -> Vec<Tallied> {
        let by = self.by;
        let there = self.traced.iter_mut().flat_map(|traced| traced.tallies(by));
        self.past.iter().flat_map(|past| past.tallies.iter().cloned()).chain(there).collect()
    }
    /// Pids of processes whose calls belong to goroutines: such a call may end, or call another function, on
    /// another thread than it began on.
    #[must_use]
    pub fn goroutines(&self) -> Vec<u32> {
        let there = self.traced.iter().filter(|traced| traced.is_go).map(|traced| traced.process.pid());
        self.past.iter().filter(|past| past.is_go).map(Past::pid).chain(there).collect()
    }
    /// Name of a call's thread; `None` if the thread has ended and its name was never read.
    pub fn thread_name(&mut self, call: &Call) -> Option<String> {
        self.name(call.pid, call.tid)
    }
    fn name(&mut self, pid: u32, tid: u32) -> Option<String> {
        let mut past = self.past.iter().rev().filter(|past| past.pid() == pid);
        self.traced
            .iter_mut()
            .filter(|traced| traced.process.pid() == pid)
            .find_map(|traced| traced.thread_name(tid))
            .or_else(|| past.find_map(|past| past.thread_name(tid)))
    }
    fn names_of(&mut self, calls: &[Call]) -> HashMap<(u32, u32), String> {
        let threads: HashSet<(u32, u32)> = calls.iter().map(|call| (call.pid, call.tid)).collect();
        threads.into_iter().filter_map(|(pid, tid)| Some(((pid, tid), self.name(pid, tid)?))).collect()
    }
    /// Takes all patches out. Returns what was counted, and what stays behind in the processes.
    #[must_use]
    pub fn detach(mut self) -> Finished {
        self.probe_executed();
        self.following.stop();
        for traced in &mut self.traced {
            traced.alive();
            traced.end_looks(&self.requested);
            traced.detach(&self.requested.options);
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
        let past = self.past.iter_mut().flat_map(|past| std::mem::take(&mut past.stacks));
        let stacks = past.chain(self.traced.iter().flat_map(|t| t.stack_sums(ns))).collect();
        let (by, past) = (self.report_options().by, std::mem::take(&mut self.past));
        let mut reports = self.reports(by, true);
        self.past = past;
        // The summary is read from memory that is given back after it.
        let mut summary = self.summary();
        let options = self.requested.options;
        summary.left_resident = self.traced.iter_mut().map(|traced| traced.forget(&options)).sum();
        let there = self.traced.iter().filter(|traced| traced.ended.is_none());
        summary.left_mapped = there.map(|traced| traced.costs.left_mapped).sum();
        summary.notices.extend(self.take_notices());
        reports.extend(std::mem::take(&mut self.past).into_iter().map(Past::last_report));
        reports.sort_by_key(|report| report.nth);
        let status = self.status;
        let command = self.launched.take().map(|launched| Running { launched, status });
        Finished { reports, summary, command, nothing, calls, names, saved, tallies, stacks }
    }
    fn summary(&mut self) -> Summary {
        let mut summary = Summary { notices: self.take_notices(), ..Summary::default() };
        summary.unprobed.clone_from(&self.unprobed);
        summary.add(&self.past_summary);
        self.traced.iter().for_each(|traced| summary.add(&traced.summary()));
        let refused = self.past.iter().flat_map(Past::refused);
        summary.refused.extend(refused.chain(self.traced.iter().flat_map(Traced::refused)).cloned());
        summary
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.following.stop();
        self.traced.iter_mut().for_each(|traced| traced.detach(&self.requested.options));
    }
}

/// A launched command that is killed when this is dropped, so it does not run if it must not run unprobed.
#[derive(Debug)]
pub(crate) struct KillOnDrop(pub(crate) Option<Launched>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if let Some(launched) = &mut self.0 {
            launched.kill();
        }
    }
}
