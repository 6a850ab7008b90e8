//! The processes of a session: added, looked at, followed, and let go when they have ended. `begin` finds the first ones.
//!
//! In: a target, requests. Out: processes under trace; notices, and processes that are not probed.
//! Invariants: SES-1; SES-2 a process that cannot be traced stops the session only if the user named it by
//! its pid, and only if it has not just ended while others go on. Does not: read counts or records.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_order::Order as _;
use trapline_tracee::{Hurry, Parked, Process, TargetError};

use super::command::Running;
use crate::arriving::Arriving;
use crate::error::{Error, nothing_had};
use crate::everyone::Everyone;
use crate::files::Files;
use crate::follow::Following;
use crate::modules::is_ours;
use crate::past::PastProcesses;
use crate::report::{Ended, Refused, Unprobed};
use crate::session_request::{ReportOptions, SessionRequest};
use crate::stacks::CodeAt;
use crate::traced::Traced;
use crate::tracers::why_not_followed;

/// Whether a process has mapped memory of a tracer.
pub(super) fn has_ours(process: &Process) -> bool {
    process.maps().is_ok_and(|maps| maps.iter().any(is_ours))
}

/// How often the maps of the processes are read.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time that a loader takes at most from its first mapping to its rendezvous, but for the largest libraries.
const SOON: Duration = Duration::from_millis(50);
/// How often threads that wait are shown that we live (HOLD-1).
const ALIVE_EVERY: Duration = Duration::from_millis(50);

/// Processes under trace, and those that have been.
#[derive(Debug)]
pub(super) struct Processes {
    pub(super) requested: SessionRequest,
    files: Files,
    pub(super) traced: Vec<Traced>,
    /// Followed processes that have ended.
    pub(super) past: PastProcesses,
    /// Number that the next process gets.
    next: u32,
    pub(super) command: Option<Running>,
    pub(super) following: Following,
    /// Processes of later, if they are traced.
    pub(super) arriving: Option<Arriving>,
    looked: Instant,
    /// When threads that wait were shown last that we live.
    shown_alive: Instant,
    /// When a process mapped something last, or waited until that was looked at.
    mapped: Instant,
    pub(super) notices: Vec<String>,
    /// Processes in which nothing is probed at all.
    pub(super) unprobed: Vec<Unprobed>,
    /// Code of the processes, if that is noted.
    pub(super) code: CodeAt,
}

impl Processes {
    /// No process yet.
    pub(super) fn new(requested: SessionRequest, follow: bool) -> Self {
        Self {
            files: Files::with(&requested.debug_folders, &requested.progress),
            requested,
            traced: Vec::new(),
            past: PastProcesses::default(),
            next: 0,
            command: None,
            following: Following::new(follow),
            arriving: None,
            looked: Instant::now(),
            shown_alive: Instant::now(),
            mapped: Instant::now(),
            notices: Vec::new(),
            unprobed: Vec::new(),
            code: CodeAt::default(),
        }
    }
    /// Adds a process to the session. A process that cannot be probed is an error if `must` is set, and a
    /// notice otherwise.
    pub(super) fn add(&mut self, process: Process, must: bool) -> Result<(), Error> {
        self.show_alive();
        if self.requested.notes_code {
            self.code.look(process.pid());
        }
        let nth = self.next;
        self.next += 1;
        let looked = Traced::new(self.following.opened(process), nth).map(|mut traced| {
            let looked = traced.look(&mut self.files, &self.requested);
            (traced, looked)
        });
        match looked {
            Ok((traced, Ok(_))) => self.traced.push(traced),
            Ok((_, Err(error))) | Err(error) if must => return Err(error),
            // One of many processes, and it has ended since it was found.
            Ok((_, Err(error))) | Err(error) if error.is_gone() => {}
            Ok((traced, Err(error))) => {
                self.is_unprobed(traced.pid(), &error);
                self.traced.push(traced);
            }
            Err(error) => self.notices.push(error.to_string()),
        }
        Ok(())
    }
    /// Whether a process can be followed; adds a notice if it cannot.
    pub(super) fn may_follow(&mut self, pid: u32) -> bool {
        if !self.following.wanted {
            return false;
        }
        let Ok(process) = Process::open(pid) else { return true };
        let Some(why) = why_not_followed(&process, &mut self.files) else { return true };
        let name = trapline_tracee::comm(pid);
        self.notices.push(format!("{name} ({pid}) is not followed, nor are its children: {why}"));
        false
    }
    pub(super) fn is_unprobed(&mut self, pid: u32, why: &dyn std::fmt::Display) {
        let one = Unprobed::new(pid, why.to_string());
        self.notices.push(one.line());
        self.unprobed.push(one);
    }
    /// Fails if nothing is probed at all.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.past.summary().patched.total() > 0
            || self.traced.iter().any(|traced| traced.probed().next().is_some())
        {
            return Ok(());
        }
        let refused: Vec<Refused> = self.refused().cloned().collect();
        let left_out = refused.iter().filter(|one| one.kind == "left-out");
        let left_out: Vec<String> = left_out.map(|one| format!("{}: {}", one.probe, one.reason)).collect();
        if !left_out.is_empty() && left_out.len() == refused.len() {
            return Err(Error::LeftOut { left_out });
        }
        // What hindered a whole process explains more than why single functions were refused.
        let whole = refused.iter().find(|one| one.kind == "batch-failed");
        if let Some(first) = whole.or_else(|| Refused::typical(&refused).filter(|_| self.unprobed.is_empty()))
        {
            let example = format!("{}: {}", first.probe, first.reason);
            return Err(Error::AllRefused { matched: refused.len() as u64, example, refused });
        }
        let mut misses: Vec<String> = self.traced.iter().flat_map(|traced| traced.misses.clone()).collect();
        misses.order();
        misses.dedup();
        misses.extend(self.notices.iter().cloned());
        if misses.is_empty() {
            // Programs in which no probe matched are forgotten, and so are their misses.
            let texts: Vec<&str> = self.requested.specs.iter().map(|spec| spec.text.as_str()).collect();
            misses.push(nothing_had(&texts, &self.unprobed));
        }
        Err(Error::NoMatch { misses })
    }
    pub(super) fn refused(&self) -> impl Iterator<Item = &Refused> {
        self.past.refused().chain(self.traced.iter().flat_map(Traced::refused))
    }
    /// Takes the notices: which probes found nothing, and what else a user should know now. Each appears
    /// once.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        let mut notices = std::mem::take(&mut self.notices);
        for traced in &mut self.traced {
            notices.append(&mut traced.misses);
            notices.append(&mut traced.notices);
        }
        let mut seen = HashSet::new();
        notices.retain(|notice| seen.insert(notice.clone()));
        notices
    }
    /// Shows threads that wait in any process that we will come to them.
    fn show_alive(&mut self) {
        if self.shown_alive.elapsed() >= ALIVE_EVERY {
            self.traced.iter().for_each(Traced::show_alive);
            self.shown_alive = Instant::now();
        }
    }
    fn look(&mut self, index: usize) {
        let traced = &mut self.traced[index];
        if let Some(one) = traced.stay_in_bounds(&self.requested.options) {
            self.notices.push(one.line());
            self.unprobed.push(one);
            return;
        }
        let traced = &mut self.traced[index];
        match traced.look(&mut self.files, &self.requested) {
            Ok(_) => {}
            Err(error) if error.is_gone() => traced.end_if_gone(),
            Err(error) => traced.notices.push(error.to_string()),
        }
    }
    /// Lets threads go on that wait in held calls, which are about to change what patches rely on.
    fn answer(&mut self, index: usize, look: bool) {
        self.traced[index].answer(&mut self.files, &self.requested, look);
    }
    /// Probes the programs that followed processes have executed, and lets them run.
    fn probe_executed(&mut self) {
        let executed = self.following.executed();
        self.unprobed.extend(self.following.take_unparked());
        self.notices.extend(self.following.take_strayed());
        executed.into_iter().for_each(|parked| self.probe_parked(parked));
    }
    /// Probes a program that waits at its start, and lets it run.
    pub(super) fn probe_parked(&mut self, parked: Parked) {
        let _hurry = Hurry::begin();
        let pid = parked.pid();
        let process = parked.process();
        // A look for processes that run may have found it before its arrival was read.
        if !process.as_ref().is_ok_and(has_ours) {
            self.probe_program(pid, process);
        }
        let may = self.may_follow(pid);
        if let Err(error) = self.let_go(parked, may)
            && Process::open(pid).is_ok()
        {
            self.notices.push(format!("process {pid} could not be let go: {error}"));
        }
    }
    pub(super) fn let_go(&mut self, parked: Parked, may: bool) -> std::io::Result<()> {
        if parked.is_at_rendezvous() {
            let of_it = |traced: &&Traced| traced.pid() == parked.pid() && traced.ended.is_none();
            self.traced.iter().filter(of_it).for_each(Traced::is_at_rendezvous);
        }
        self.following.let_go(parked, may)
    }
    /// Probes a program that a process has begun to run.
    fn probe_program(&mut self, pid: u32, process: Result<Process, TargetError>) {
        let before = self.traced.iter_mut().filter(|traced| traced.pid() == pid);
        before.for_each(|traced| traced.end(Ended::Exec));
        match process {
            Ok(process) => {
                // A new program in which no probe matches is no trouble: it is one of many.
                let notices = self.notices.len();
                if let Err(error) = self.add(process, false)
                    && !error.is_gone()
                {
                    self.is_unprobed(pid, &error);
                }
                self.notices.truncate(notices);
                if let Some(traced) = self.traced.last_mut().filter(|traced| traced.pid() == pid) {
                    traced.misses.clear();
                }
                self.traced.retain(|traced| traced.ended.is_some() || traced.concerns_us());
            }
            Err(error) if error.is_gone() => {}
            Err(error) => self.unprobed.push(Unprobed::new(pid, error.to_string())),
        }
    }
    /// Reduces followed processes that have ended to what reports need.
    fn part_with_ended(&mut self, options: &dyn Fn() -> ReportOptions) {
        if !self.following.wanted && self.arriving.is_none() {
            return;
        }
        let options = options();
        for mut traced in self.traced.extract_if(.., Traced::is_past).collect::<Vec<_>>() {
            self.notices.append(&mut traced.misses);
            self.notices.append(&mut traced.notices);
            let (past, summary) = traced.leave(options, &self.requested.maps);
            self.past.add(past, &summary);
        }
    }
    /// Looks for new modules, executed programs and processes that ended. Returns false when nothing is left
    /// to trace. Reports of processes that have ended are made with `options`.
    pub(super) fn poll(&mut self, options: &dyn Fn() -> ReportOptions) -> bool {
        self.probe_executed();
        self.probe_arrived();
        self.requested.everyone.iter().for_each(Everyone::poll);
        let mut any = self.following.wanted && self.following.is_busy() || self.arriving.is_some();
        let look = self.looked.elapsed() >= LOOK_EVERY;
        let _hurry = self.traced.iter().any(Traced::is_waited_for).then(Hurry::begin);
        for index in 0..self.traced.len() {
            self.show_alive();
            self.answer(index, look);
            let maps = self.traced[index].read_mappings();
            if maps || self.traced[index].loads() {
                self.mapped = Instant::now();
            }
            match look || maps || self.traced[index].loads() {
                true if self.traced[index].alive() => self.look(index),
                true => {}
                false => self.traced[index].read_names(),
            }
            any |= self.traced[index].ended.is_none();
        }
        if look {
            self.looked = Instant::now();
            self.part_with_ended(options);
        }
        let has_ended = self.command.as_mut().is_some_and(|command| command.status().is_some());
        // Children that outlive a launched command matter only when they are followed.
        any && (!has_ended || self.following.wanted)
    }
    /// Whether a thread may come to its loader's rendezvous soon: a process has just mapped something.
    pub(super) fn loads_soon(&self) -> bool {
        self.mapped.elapsed() < SOON
    }
    /// Descriptors that become readable when there is something to look at.
    pub(super) fn descriptors(&self) -> Vec<i32> {
        let mapped = self.traced.iter().flat_map(Traced::descriptors);
        mapped
            .chain(self.arriving.as_ref().map(Arriving::descriptor))
            .chain(self.following.descriptor())
            .collect()
    }
    /// Takes all patches out. Counts can still be read afterwards.
    pub(super) fn detach(&mut self) {
        self.probe_executed();
        self.arriving = None;
        self.following.stop();
        for traced in &mut self.traced {
            traced.alive();
            traced.end_looks(&self.requested);
            traced.detach(&self.requested.options);
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.arriving = None;
        self.following.stop();
        self.traced.iter_mut().for_each(|traced| traced.detach(&self.requested.options));
    }
}
