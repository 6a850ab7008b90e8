//! One process under trace, from the first look at its modules to its last report.
//!
//! In: an opened process and the session's requests ([`SessionRequest`]). Out: [`ProcessReport`]s; at the
//! end, the process as it was. [`Traced`] puts parts together, each with an invariant of its own:
//!
//! | part | holds |
//! |---|---|
//! | `target_process` | the process itself, its children, what its program is |
//! | `prober` | what is probed: the next four |
//! | `loads` | modules that were looked at, and those that ran before they were probed |
//! | `patches`, `kernel` | patches and kernel uprobes, and what they cost |
//! | `site_table` | the sites that are probed, and those that were refused |
//! | `delivery` | the program's handlers of faults |
//! | `held` | places at which the program would change what patches rely on |
//! | `readings` | what is read: the next three |
//! | `recorder`, `rings`, `saving`, `stack_reader` | records on their way out of the rings |
//! | `sample`, `thinning` | what a recording costs, and what is taken out of it for that |
//! | `thread_names` | threads by name, for filters and rows |
//! | `call_times`, `counters` | what stubs have counted |
//! | `foreign`, `births`, `control_group` | what else may happen to the process |
//! | `leaving` | when a process that has ended is let go |
//!
//! Invariant: TRC-2 what was counted stays counted after dlclose, exec and exit. Does not: choose processes.

mod births;
mod call_times;
mod control_group;
mod costs;
mod counters;
mod delivery;
mod foreign;
mod held;
mod kernel;
mod keyed_stacks;
mod leaving;
mod left_alone;
mod loads;
mod patches;
mod prober;
mod readings;
mod recorder;
mod rings;
mod sample;
mod saving;
mod site_table;
mod stack_reader;
mod target_process;
mod thinning;
mod thread_names;

use std::time::{Duration, Instant};

use trapline_patch::Options;
use trapline_tracee::Process;

pub(crate) use self::delivery::may_deliver;

use self::births::Births;
use self::control_group::ControlGroup;
use self::foreign::Foreign;
use self::leaving::Leaving;
use self::prober::{LookWith, Looked, Prober};
use self::readings::Readings;
use self::target_process::TargetProcess;
use crate::aggregation::Tallied;
use crate::calls::Call;
use crate::decode::Clock;
use crate::error::Error;
use crate::files::Files;
use crate::maps::{MapContents, MapTable};
use crate::past::Past;
use crate::procfs::cpu_time;
use crate::report::{By, Ended, ProcessReport, Refused, Site, Tactic, Thinned, Unprobed};
use crate::saved::tables::TakenProbe;
use crate::session_request::{ReportOptions, SessionRequest};
use crate::stacks::StackSum;
use crate::summary::Summary;

/// A process under trace.
#[derive(Debug)]
pub(crate) struct Traced {
    target: TargetProcess,
    prober: Prober,
    readings: Readings,
    births: Births,
    foreign: Foreign,
    group: ControlGroup,
    leaving: Leaving,
    /// The user named this process by pid or name. False for a launched command, for processes that others
    /// started meanwhile, and for processes that were found by the files they map.
    pub(crate) is_asked_for: bool,
    pub(crate) ended: Option<Ended>,
    pub(crate) misses: Vec<String>,
    pub(crate) notices: Vec<String>,
}

impl Traced {
    /// A traced process in which nothing is patched yet.
    pub(crate) fn new(process: Process, nth: u32) -> Result<Self, Error> {
        let target = TargetProcess::new(process, nth)?;
        let (pid, now) = (target.pid(), Instant::now());
        Ok(Self {
            target,
            prober: Prober::new(pid, now),
            readings: Readings::new(now),
            births: Births::default(),
            foreign: Foreign::new(now),
            group: ControlGroup::of(pid),
            leaving: Leaving::default(),
            is_asked_for: false,
            ended: None,
            misses: Vec::new(),
            notices: Vec::new(),
        })
    }
    pub(crate) const fn pid(&self) -> u32 {
        self.target.pid()
    }
    /// Whether calls belong to goroutines, which may move between threads.
    pub(crate) const fn is_go(&self) -> bool {
        self.target.is_go
    }
    /// Sites that are probed.
    pub(crate) fn probed(&self) -> impl Iterator<Item = &Site> {
        self.prober.sites.iter().map(|tracked| &*tracked.site)
    }
    /// Whether there is anything to report about the process.
    pub(crate) fn concerns_us(&self) -> bool {
        !self.prober.sites.is_unconcerned()
    }
    pub(crate) fn refused(&self) -> &[Refused] {
        self.prober.sites.refused()
    }
    /// The parts between which a look goes to and fro.
    const fn look_parts(&mut self) -> (&mut Prober, LookWith<'_>) {
        let Self { target, prober, readings, misses, notices, .. } = self;
        let Readings { recorder, names, keyed, .. } = readings;
        (prober, LookWith { target, names, stacks: &mut recorder.stacks, keyed, misses, notices })
    }
    /// Looks at modules that are new since the last call, and probes what is requested there. `before` is
    /// called before the process is seized.
    pub(crate) fn look(&mut self, files: &mut Files, requested: &SessionRequest) -> Result<(), Error> {
        let (prober, mut with) = self.look_parts();
        if prober.look(&mut with, files, requested)? == Looked::Executed {
            self.end(Ended::Exec);
        }
        Ok(())
    }
    /// Answers held calls and, at a `look`, finds changes that were made without asking.
    pub(crate) fn answer(&mut self, files: &mut Files, requested: &SessionRequest, look: bool) {
        if self.ended.is_some() {
            return;
        }
        let (prober, mut with) = self.look_parts();
        if prober.answer(&mut with, files, requested, look) {
            self.end(Ended::Exec);
        }
    }
    /// Takes the kernel's records of new mappings. Returns whether there is something new to look at.
    pub(crate) fn read_mappings(&mut self) -> bool {
        self.prober.loads.read_records(self.target.pid())
    }
    /// At the session's end: counts what was mapped and never looked at.
    pub(crate) fn end_looks(&mut self, requested: &SessionRequest) {
        self.read_mappings();
        self.prober.loads.end(requested);
    }
    /// Descriptors that become readable when the process has mapped something.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        if self.ended.is_none() { self.prober.loads.descriptors() } else { Vec::new() }
    }
    /// Notes what became of the process since the last call. Returns false once it is over.
    pub(crate) fn alive(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.end_if_gone();
        if self.ended.is_some() {
            return false;
        }
        self.target.look_for_children();
        self.readings.names.look_at_rows(&self.target, self.prober.patches.segments(), false);
        self.read_names();
        self.look_at_sharers();
        let process = &self.target.process;
        self.prober.patches.reclaim(process);
        if !self.prober.patches.detached {
            self.notices.extend(self.foreign.look(process, &self.prober.patches.attached));
            self.notices.extend(self.births.look(process, &mut self.prober.patches.attached));
        }
        if self.prober.sites.iter().any(|tracked| tracked.is_tallied()) {
            self.readings.recorder.rings.forget(self.prober.patches.segments());
        }
        true
    }
    /// Finds the processes that share the maps, while they have their own pages.
    fn look_at_sharers(&mut self) {
        let segments = self.prober.patches.attached.segments();
        self.readings.sharers.look(&self.target.process, segments);
        if let Some(pid) = self.readings.sharers.take_new() {
            self.notices.push(format!(
                "process {pid} has the probes of process {}, which made it, and another PID namespace: in keys of maps in the program its \
                 threads have the numbers that this trapline sees, elsewhere those that they see themselves; so with others like it",
                self.target.pid()
            ));
        }
    }
    /// Notes the end of the process if it is over. A process loses its memory before it ends; until it has
    /// ended, it is looked at again and again.
    pub(crate) fn end_if_gone(&mut self) {
        if cpu_time(self.target.pid()).is_none() || !self.target.process.alive() {
            self.end(Ended::Exited);
        }
    }
    /// Whether the process is known to be over, or is over.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some() || !self.target.process.alive()
    }
    pub(crate) fn end(&mut self, how: Ended) {
        if self.ended.is_some() {
            return;
        }
        let (how, notice) = match how {
            Ended::Exited => {
                let executed = || self.prober.is_elsewhere(&self.target.process);
                self.group.how_it_ended(&self.target, &executed)
            }
            how => (how, None),
        };
        // The kernel would put its uprobes into the next program, too, if that has the same file.
        if how == Ended::Exec {
            self.prober.patches.links.detach();
        }
        self.notices.extend(notice);
        self.ended = Some(how);
    }
    /// Takes the patches out if the process' own share of the probes' memory has grown too large. Returns
    /// what to report then.
    pub(crate) fn stay_in_bounds(&mut self, options: &Options) -> Option<Unprobed> {
        if self.prober.patches.detached || self.ended.is_some() {
            return None;
        }
        let overgrown = self.group.overgrown(&self.target, &self.prober.patches.attached)?;
        self.detach(options);
        Some(overgrown)
    }
    /// Takes all patches out. Counts can still be read afterwards.
    pub(crate) fn detach(&mut self, options: &Options) {
        if std::mem::replace(&mut self.prober.patches.detached, true) {
            return;
        }
        self.look_at_sharers();
        let process = &self.target.process;
        if self.ended.is_none() {
            self.notices.extend(self.foreign.look_once_more(process, &self.prober.patches.attached));
        }
        let runs_on = self.ended != Some(Ended::Exec);
        let Some(report) = self.prober.patches.detach(process, runs_on, options) else { return };
        if report.gone {
            self.end(Ended::Exited);
        }
        self.prober.patches.note_detached(&mut self.target, &report, &mut self.notices);
    }
    /// Whether threads may wait for an answer.
    pub(crate) fn holds(&self) -> bool {
        self.ended.is_none() && self.prober.patches.hold()
    }
    /// Whether a thread waits for an answer, as far as it has said so.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.holds() && (self.prober.patches.attached.asked() != 0 || self.loads())
    }
    /// Shows threads that wait that we will come to them.
    pub(crate) fn show_alive(&self) {
        if self.holds() {
            self.prober.patches.attached.show_alive();
        }
    }
    /// The process waits at its loader's rendezvous, and goes on there next.
    pub(crate) fn is_at_rendezvous(&self) {
        self.prober.patches.attached.answer_next();
    }
    /// Whether a thread has loaded libraries, and waits until these were looked at.
    pub(crate) fn loads(&self) -> bool {
        self.ended.is_none() && !self.prober.patches.tickets().is_empty()
    }
    pub(crate) fn read_names(&mut self) {
        self.readings.read_names(&self.target, &mut self.prober);
    }
    /// Name of a thread. `tid` is the number that the tracer sees.
    pub(crate) fn thread_name(&mut self, tid: u32) -> Option<String> {
        self.readings.names.name(&self.target, tid)
    }
    /// Process of a thread: this one, or a child that it forked.
    pub(crate) fn process_of(&mut self, tid: u32) -> Option<u32> {
        self.readings.names.process(&self.target, tid)
    }
    /// Whether entries are reported when they happen too.
    pub(crate) const fn announce_entries(&mut self, announces: bool) {
        self.readings.recorder.announce_entries(announces);
    }
    /// Reads a round and reports calls, or sums stacks; see [`Readings::each_call`].
    pub(crate) fn each_call(
        &mut self,
        clock: Clock,
        until: Option<u64>,
        each: &mut dyn FnMut(Call),
    ) -> usize {
        let is_last = self.leaving.is_last_round();
        let until = until.filter(|_| !is_last);
        self.readings.each_call(&self.target, &mut self.prober, clock, until, each)
    }
    /// Writes what was recorded since the last call, and what is needed to read it. `next` is the number for
    /// the next process that appears in the file. Returns the number of records.
    pub(crate) fn save<E>(
        &mut self,
        next: &mut u32,
        (last, waits): (bool, bool),
        write: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let last = self.leaving.is_last_round() || last;
        let Readings { recorder, names, .. } = &mut self.readings;
        let Prober { sites, patches, .. } = &self.prober;
        if waits && self.ended.is_some() && !patches.detached {
            recorder.note_end(patches.segments());
        }
        let waits = waits && self.ended.is_none() && !patches.detached;
        recorder.save(&self.target, sites, &patches.attached, names, (next, last, waits), write)
    }
    /// Takes functions out of the recording if it costs more than its budget; see `thinning`. Returns the block that says so, and
    /// what it says.
    pub(crate) fn thin(
        &mut self,
        budget: f64,
        (start, ns_per_tick): Clock,
        notices: &mut Vec<String>,
    ) -> Option<(Vec<u8>, Vec<Thinned>)> {
        if self.ended.is_some() || self.prober.patches.detached {
            return None;
        }
        let Prober { sites, patches, .. } = &mut self.prober;
        let done = self.readings.recorder.thin(&self.target, &mut patches.attached, (budget, ns_per_tick))?;
        match done {
            Ok((number, out)) => {
                let of = |probe: &TakenProbe| {
                    let at = (probe.segment as usize, probe.probe);
                    let site =
                        sites.iter().find(|tracked| tracked.counters().any(|counter| counter == at))?;
                    Some(Thinned {
                        pid: self.target.pid(),
                        function: site.site.label.clone(),
                        calls: probe.calls,
                        at: Duration::from_nanos((out.at.saturating_sub(start) as f64 * ns_per_tick) as u64),
                        share: out.share,
                    })
                };
                let all = out.probes.iter().filter_map(of).collect();
                Some((out.put(number), all))
            }
            Err(why) => {
                let pid = self.target.pid();
                let notice = format!("process {pid}: nothing was taken out of the recording: {why}");
                if !notices.contains(&notice) {
                    notices.push(notice);
                }
                None
            }
        }
    }
    /// All sums of stacks, most calls first.
    pub(crate) fn stack_sums(&self, ns_per_tick: f64) -> Vec<StackSum> {
        self.readings.stack_sums(&self.target, &self.prober, ns_per_tick)
    }
    /// Aggregations, site by site.
    pub(crate) fn tallies(&mut self, by: Option<By>) -> Vec<Tallied> {
        self.readings.tallies(&self.target, &mut self.prober, by)
    }
    /// What is in the maps of hits' programs. What hits said is taken.
    pub(crate) fn maps(&mut self, tables: &[MapTable]) -> MapContents {
        let last = self.ended.is_some() || self.prober.patches.detached;
        self.readings.maps(&self.target, &mut self.prober, (tables, last))
    }
    /// All counts now. `ends`: the next interval begins with this report.
    pub(crate) fn report(&mut self, options: ReportOptions, ends: bool) -> ProcessReport {
        self.readings.report(&self.target, &mut self.prober, self.ended.as_ref(), options, ends)
    }
    /// Called after the last report. Gives back counters, latency areas, and code that no thread can be in.
    /// Returns the bytes of memory that stay behind.
    pub(crate) fn forget(&mut self, options: &Options) -> u64 {
        if self.ended.is_some() || self.prober.patches.segments().is_empty() {
            return 0;
        }
        self.prober.patches.forget(&self.target.process, options, &mut self.notices)
    }
    /// Bytes of address space that stay mapped.
    pub(crate) const fn left_mapped(&self) -> u64 {
        self.prober.patches.costs.left_mapped
    }
    /// Whether the process has ended and nothing can be counted there any more (PAST-1).
    pub(crate) fn is_past(&mut self) -> bool {
        if self.ended.is_none() || self.prober.patches.detached {
            return false;
        }
        self.leaving.is_past(&mut self.prober.patches.attached)
    }
    /// P4: what is kept of the process, and its totals.
    pub(crate) fn leave(mut self, options: ReportOptions, tables: &[MapTable]) -> (Past, Summary) {
        let interval = self.readings.interval;
        let report = self.report(options, true);
        let tallies = self.tallies(options.rows_by);
        let maps = self.maps(tables);
        let stacks = self.stack_sums(options.scale.0);
        let summary = self.summary();
        let (is_go, names) = (self.target.is_go, self.readings.names.take());
        (Past { report, interval, tallies, maps, stacks, is_go, names }, summary)
    }
    /// Totals at the end, except refusals and what stays mapped.
    pub(crate) fn summary(&self) -> Summary {
        let (counters, (ours, kernel)) =
            (self.readings.counters(&self.prober), self.prober.sites.last_hits());
        let totals = self.prober.patches.costs.totals();
        let mut summary = Summary {
            processes: 1,
            notices: self.last_notices(),
            ended: u64::from(self.ended.is_some()),
            killed: u64::from(self.is_asked_for && matches!(self.ended, Some(Ended::Killed { .. }))),
            children: if self.prober.patches.segments().is_empty() { 0 } else { self.forked() },
            matched: (self.prober.sites.len() + self.refused().len()) as u64,
            hits: ours + kernel,
            missed: counters.missed(),
            filtered: counters.all_filtered(),
            guard_traps: self.prober.patches.guard_hits(),
            left_mapped: if self.ended.is_some() { 0 } else { totals.left_mapped },
            overwritten: self.foreign.overwritten(),
            ..totals
        };
        self.probed().for_each(|site| summary.patched.add(site.tactic));
        summary
    }
    /// Number of forked children that inherited the patches; their hits count with the parent's.
    fn forked(&self) -> u64 {
        self.prober.loads.forked().unwrap_or(self.target.children.len() as u64)
    }
    /// Notices for the end of the session.
    fn last_notices(&self) -> Vec<String> {
        let pid = self.target.pid();
        let mut notices = self.readings.recorder.notices(pid);
        notices.extend(self.prober.loads.late().iter().flat_map(|late| late.lines(pid)));
        // Kernel uprobes count in this process alone, while other hits in its children count with its own.
        let kernel = self.probed().filter(|site| site.tactic == Tactic::Kernel).count();
        let forked = self.forked();
        if kernel > 0 && forked > 0 {
            let children = if forked == 1 { "child" } else { "children" };
            notices.push(format!(
                "kernel uprobes count at {kernel} sites in process {pid} alone: hits of its {forked} forked {children} there are not seen"
            ));
        }
        notices
    }
}
