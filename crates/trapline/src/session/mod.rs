//! A session: probes in processes, from attach to detach.
//!
//! In: a [`Setup`], which `Builder` makes. Out: [`ProcessReport`]s while it runs, [`Finished`] at its end.
//! Processes under trace are `crate::traced`'s; what is kept of those that have ended is `crate::past`'s.
//! Invariants: SES-1 a session takes all its patches out, however it ends (detach, drop, or an error on the
//! way). SES-2: see `processes`. Does not: print, wait, handle signals.

mod begin;
mod command;
mod finished;
mod later;
mod processes;
mod recording;

pub(crate) use self::command::KillOnDrop;
pub use self::command::Running;
pub use self::finished::Finished;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use trapline_order::Order as _;
use trapline_plan::filter::Late;
use trapline_plan::hit::HitClock;
use trapline_tracee::{Interrupt, Interrupts, TickClock};

use self::processes::Processes;
use self::recording::{Recording, numbers};
use crate::aggregation::Tallied;
use crate::calls::{Call, in_order};
use crate::error::Error;
use crate::everyone::Everyone;
use crate::filter::Filter;
use crate::histogram::{LinearBuckets, TickScale};
use crate::maps::MapContents;
use crate::report::{By, ProcessReport};
use crate::saved;
use crate::session_request::{ReportOptions, SessionRequest};
use crate::stacks::CodeAt;
use crate::summary::Summary;
use crate::target::Target;
use crate::traced::Traced;

/// Longest wait between two looks for threads that wait for an answer.
const ANSWER_EVERY: Duration = Duration::from_millis(10);
/// The same while a library is being loaded.
const LOADING: Duration = Duration::from_micros(500);

/// How long a thread waits for a reader that shows no sign of life (docs/design/recording.md).
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// What is to be traced, and how.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) target: Target,
    pub(crate) requested: SessionRequest,
    /// How hits are grouped.
    pub(crate) by: Option<By>,
    pub(crate) follow: bool,
    /// Least duration of a call that is timed.
    pub(crate) min: Duration,
    /// Equal steps of the histogram of durations, if the clock can count in them.
    pub(crate) steps: Option<LinearBuckets>,
}

/// A running session. Call [`poll`](Self::poll) a few times a second, [`report`](Self::report) when you
/// want to know, and [`detach`](Self::detach) at the end. Dropping it takes all patches out.
#[derive(Debug)]
pub struct Session {
    processes: Processes,
    by: Option<By>,
    clock: TickClock,
    recording: Recording,
    /// Nanoseconds per tick for the times of calls. It is measured at its first use and stays, since calls of two rounds
    /// are put into order, and below each other, by these times. A tick that changed by a billionth after some seconds
    /// would let a call begin before the one before it had ended.
    tick: OnceLock<f64>,
    /// Entries are reported when they happen.
    announces: bool,
}

impl Session {
    pub(crate) fn start(setup: Setup) -> Result<Self, Error> {
        let Setup { target, mut requested, by, follow, min, steps } = setup;
        let clock = TickClock::start();
        let timed = requested.hit_action.is_timed();
        if timed && !min.is_zero() {
            let ticks = min.as_nanos() as f64 / clock.ns_per_tick();
            requested.durations.min_ticks = ticks.round() as u64;
        }
        if requested.filters.iter().any(|filter| filter.is_late() || filter.keeps_texts()) {
            requested.tick = Some(Late::tick_of(clock.ns_per_tick()));
        }
        if requested.lossless {
            requested.options.waits = Some((LONGEST_WAIT.as_nanos() as f64 / clock.ns_per_tick()) as u64);
        }
        if let Some(steps) = steps.filter(|_| timed)
            && let Some(buckets) = steps.buckets(TickScale::new(clock.ns_per_tick()))
        {
            requested.durations.buckets = buckets;
            requested.steps = Some(steps);
        }
        if requested.filters.iter().any(|filter| filter.runs_program()) {
            let tick = Late::tick_of(clock.ns_per_tick());
            let unset = HitClock { tick, offset: 0 };
            let (ticks, now) = TickClock::with_boot();
            let clock = HitClock { offset: now.wrapping_sub(unset.nanos(ticks)), ..unset };
            let with_clock = |filter: Arc<Filter>| Arc::new(Filter::clone(&filter).with_clock(clock));
            requested.filters = requested.filters.into_iter().map(with_clock).collect();
        }
        let mut processes = Processes::new(requested, follow);
        processes.start(&target)?;
        Ok(Self {
            processes,
            by,
            clock,
            recording: Recording::default(),
            tick: OnceLock::new(),
            announces: false,
        })
    }
    /// Takes what was noted of processes' code ([`Builder::notes_code`](crate::Builder::notes_code)).
    pub fn take_code(&mut self) -> CodeAt {
        std::mem::take(&mut self.processes.code)
    }
    /// Takes the notices: which probes found nothing, and what else a user should know now. Each appears
    /// once.
    pub fn take_notices(&mut self) -> Vec<String> {
        self.processes.take_notices()
    }
    /// Looks for new modules, executed programs and processes that ended. Returns false when nothing is left
    /// to trace. Call it a few times a second. Call it every few milliseconds where programs are followed
    /// (each new one waits for it), or where hits are grouped by thread name. A thread that is about to
    /// change what patches rely on waits for it too, for some seconds at most.
    pub fn poll(&mut self) -> bool {
        let Self { processes, by, clock, .. } = self;
        let hit_action = processes.requested.hit_action;
        processes.poll(&|| ReportOptions::new(hit_action, *by, clock.ns_per_tick()))
    }
    fn report_options(&self) -> ReportOptions {
        ReportOptions::new(self.processes.requested.hit_action, self.by, self.clock.ns_per_tick())
    }
    /// Waits for a signal that ends the run, for at most `at_most`, and no longer than until a process maps
    /// something: then [`poll`](Self::poll) has work.
    #[must_use]
    pub fn wait(&self, interrupts: &Interrupts, at_most: Duration) -> Option<Interrupt> {
        let mapped = self.processes.descriptors();
        // A thread may wait for an answer.
        let holds = self.processes.traced.iter().any(Traced::holds);
        let longest = match (holds, self.processes.loads_soon()) {
            (true, true) => LOADING,
            (true, false) => ANSWER_EVERY,
            (false, _) => at_most,
        };
        interrupts.wait_beside(&mapped, at_most.min(longest))
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
        let options = ReportOptions { by, ..self.report_options() };
        let there = self.processes.traced.iter_mut().map(|traced| traced.report(options, ends));
        let mut reports: Vec<ProcessReport> = self.processes.past.reports(ends).chain(there).collect();
        reports.order_by_key(|report| report.nth);
        reports
    }
    /// Calls that were recorded since the last call, in the order in which they ended; see
    /// [`Builder::record`](crate::Builder::record). Call this often: records that find a ring full
    /// meanwhile are dropped, and counted.
    pub fn calls(&mut self) -> Vec<Call> {
        let (clock, until) = (self.numbers(), Some(TickClock::ticks()));
        let (mut calls, announces) = (Vec::new(), self.announces);
        for traced in &mut self.processes.traced {
            traced.announce_entries(announces);
            traced.each_call(clock, until, &mut |call| calls.push(call));
        }
        in_order(&mut calls);
        calls
    }
    /// Lets [`calls`](Self::calls) report each entry when it happens ([`CallEnd::Entered`](crate::calls::CallEnd)),
    /// and the call again when it ends. All are in the order in which they happened.
    pub const fn announce_entries(&mut self) {
        self.announces = true;
    }
    /// Time since the session's start, by the clock of [`Call::at`](crate::Call::at).
    #[must_use]
    pub fn since_start(&self) -> Duration {
        let (start, ns_per_tick) = self.numbers();
        Duration::from_nanos((TickClock::ticks().saturating_sub(start) as f64 * ns_per_tick).round() as u64)
    }
    /// The clock as calls are decoded with it.
    fn numbers(&self) -> (u64, f64) {
        (self.clock.started(), *self.tick.get_or_init(|| self.clock.ns_per_tick()))
    }
    /// Hands the same calls on one by one; where there is one process, without keeping them. Returns the
    /// number of records read.
    pub fn each_call(&mut self, mut each: impl FnMut(&Call)) -> usize {
        if self.processes.traced.len() == 1 {
            let (clock, until) = (self.numbers(), Some(TickClock::ticks()));
            return self.processes.traced[0].each_call(clock, until, &mut |call| each(&call));
        }
        let calls = self.calls();
        calls.iter().for_each(each);
        calls.len()
    }
    /// Begins to save records instead of reporting them. Returns the file's first bytes. `note` is stored
    /// with them, for the program that reads the file ([`Saved`](crate::saved::Saved)).
    #[must_use]
    pub fn save_begin(&mut self, note: &[u8]) -> Vec<u8> {
        self.recording.begin(self.processes.requested.lossless);
        saved::begin(numbers(&self.clock), note)
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
        let past = self.processes.past.len();
        let taken = self.recording.round(&mut self.processes.traced, past, &self.clock, until, write)?;
        if let Some(budget) = self.processes.requested.budget.filter(|_| until.is_some()) {
            self.recording.thin(&mut self.processes.traced, (budget, &self.clock), write)?;
        }
        Ok(taken)
    }
    /// Aggregations since attach, site by site; see [`Builder::tally`](crate::Builder::tally).
    pub fn tallies(&mut self) -> Vec<Tallied> {
        let by = self.by;
        let there = self.processes.traced.iter_mut().flat_map(|traced| traced.tallies(by));
        self.processes.past.tallies().chain(there).collect()
    }
    /// What hits' programs left in maps since attach, process by process; see [`Builder::maps`](crate::Builder::maps).
    /// A row whose stack is just being stored comes with the next call; what hits said comes once.
    pub fn maps(&mut self) -> Vec<MapContents> {
        let mut maps = self.all_maps();
        maps.iter_mut().for_each(MapContents::keep_known);
        maps
    }
    fn all_maps(&mut self) -> Vec<MapContents> {
        let tables = self.processes.requested.maps.clone();
        let there = self.processes.traced.iter_mut().map(|traced| traced.maps(&tables));
        self.processes.past.maps().chain(there).collect()
    }
    /// Pids of processes in which calls belong to goroutines: such a call may end, or call another function,
    /// on another thread than it began on.
    #[must_use]
    pub fn goroutines(&self) -> Vec<u32> {
        let there = self.processes.traced.iter().filter(|traced| traced.is_go()).map(Traced::pid);
        self.processes.past.goroutines().chain(there).collect()
    }
    /// Name of a call's thread; `None` if the thread has ended and its name was never read.
    pub fn thread_name(&mut self, call: &Call) -> Option<String> {
        self.name(call.pid, call.tid)
    }
    /// The process of a call's thread, which may be a child that [`Call::pid`] forked; `None` if the thread has ended and it was
    /// never read.
    pub fn process_of(&mut self, call: &Call) -> Option<u32> {
        self.process(call.pid, call.tid)
    }
    fn process(&mut self, pid: u32, tid: u32) -> Option<u32> {
        let mut of_pid = self.processes.traced.iter_mut().filter(|traced| traced.pid() == pid);
        let read = of_pid.find_map(|traced| traced.process_of(tid));
        read.or_else(|| self.processes.past.process_of(pid, tid))
    }
    fn processes_of(&mut self, calls: &[Call]) -> HashMap<(u32, u32), u32> {
        let threads: HashSet<(u32, u32)> = calls.iter().map(|call| (call.pid, call.tid)).collect();
        threads.into_iter().filter_map(|(pid, tid)| Some(((pid, tid), self.process(pid, tid)?))).collect()
    }
    fn name(&mut self, pid: u32, tid: u32) -> Option<String> {
        let mut of_pid = self.processes.traced.iter_mut().filter(|traced| traced.pid() == pid);
        let named = of_pid.find_map(|traced| traced.thread_name(tid));
        named.or_else(|| self.processes.past.thread_name(pid, tid))
    }
    fn names_of(&mut self, calls: &[Call]) -> HashMap<(u32, u32), String> {
        let threads: HashSet<(u32, u32)> = calls.iter().map(|call| (call.pid, call.tid)).collect();
        threads.into_iter().filter_map(|(pid, tid)| Some(((pid, tid), self.name(pid, tid)?))).collect()
    }
    /// Names of all processes of the machine, if they are watched together: where all may be probed.
    #[must_use]
    pub fn everyone(&self) -> Option<Everyone> {
        self.processes.requested.everyone.clone()
    }
    /// Takes all patches out. Returns what was counted, and what stays behind in the processes.
    #[must_use]
    pub fn detach(mut self) -> Finished {
        self.processes.detach();
        let nothing = self.processes.check().err();
        let clock = self.numbers();
        let (mut calls, mut saved) = (Vec::new(), Vec::new());
        if self.recording.is_begun() {
            let Ok(_) = self.save_round(None, &mut |bytes: &[u8]| {
                saved.extend_from_slice(bytes);
                Ok::<(), std::convert::Infallible>(())
            });
        } else {
            let announces = self.announces;
            for traced in &mut self.processes.traced {
                traced.announce_entries(announces);
                traced.each_call(clock, None, &mut |call| calls.push(call));
            }
        }
        let (names, processes) = (self.names_of(&calls), self.processes_of(&calls));
        let (tallies, maps) = (self.tallies(), self.all_maps());
        let there = self.processes.traced.iter().flat_map(|traced| traced.stack_sums(clock.1));
        let stacks = self.processes.past.take_stacks().chain(there).collect();
        let options = self.report_options();
        let mut reports: Vec<ProcessReport> =
            self.processes.traced.iter_mut().map(|traced| traced.report(options, true)).collect();
        // The summary is read from memory that is given back after it.
        let mut summary = self.summary();
        let options = self.processes.requested.options;
        summary.left_resident = self.processes.traced.iter_mut().map(|traced| traced.forget(&options)).sum();
        let there = self.processes.traced.iter().filter(|traced| traced.ended.is_none());
        summary.left_mapped = there.map(Traced::left_mapped).sum();
        summary.notices.extend(self.take_notices());
        reports.extend(self.processes.past.last_reports());
        reports.order_by_key(|report| report.nth);
        let command = self.processes.command.take();
        summary.notices.append(&mut self.recording.notices);
        let thinned = std::mem::take(&mut self.recording.thinned);
        Finished {
            reports,
            summary,
            command,
            nothing,
            calls,
            names,
            processes,
            saved,
            thinned,
            tallies,
            maps,
            stacks,
        }
    }
    fn summary(&mut self) -> Summary {
        let mut summary = Summary { notices: self.take_notices(), ..Summary::default() };
        summary.unprobed.clone_from(&self.processes.unprobed);
        summary.add(self.processes.past.summary());
        self.processes.traced.iter().for_each(|traced| summary.add(&traced.summary()));
        summary.refused.extend(self.processes.refused().cloned());
        summary
    }
}
