//! A script that runs: begin, intervals, signals, hits, end.
//!
//! In: a program. Out: its output and exit status. Blocks of begin run when everything is attached, before any hit is
//! looked at; those of end when everything is detached. An interval that is late runs once, not once for each time
//! that was missed. Does not: know what blocks do.

use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trapline::{Interrupt, Interrupts};
use trapline_script::native::Native;
use trapline_script::{Clock, Hit, Machine, Probe, Program, Stream, Style, World};

use super::host::{Host, Timer};
use super::places::Event;
use super::probing::Probing;
use super::said::{Line, Waiting};
use super::stop::{Stop, said, say};
use super::watched::Watched;
use super::{bench, own};
use crate::args::command::Script;
use crate::args::sink::Sink;
use crate::output::{Output, OutputError};
use crate::report::summary;

/// How long is waited at most, if nothing is due: a launched command may have ended.
const TICK: Duration = Duration::from_millis(50);

/// How often hits are looked for.
const ROUND: Duration = Duration::from_millis(2);

/// How often what hits said is taken.
const SAID: Duration = Duration::from_millis(20);

/// Set by the tests of bpftrace: how they know that everything is attached.
const NOTIFY: &str = "__BPFTRACE_NOTIFY_PROBES_ATTACHED";
/// Set by tests: the map whose value is the time of series.
const SERIES_CLOCK: &str = "BPFTRACE_DUMMY_TS_MAP";

/// A script that runs.
struct Running<'a> {
    args: &'a Script,
    machine: Machine,
    host: Host,
    hit: Hit,
    timers: Vec<Timer>,
    child: Option<Child>,
    probing: Option<Probing>,
    watched: Option<Watched>,
    /// What hits said, and when it is taken the next time.
    said: Waiting,
    said_due: Instant,
    /// Notices that were written.
    told: Vec<String>,
    /// The process that was asked for, if no program is probed.
    pid: Option<u32>,
    /// When the script asked to end, by [`Clock::Boot`].
    ended: Option<u64>,
}

/// Runs a program to its end.
pub(super) fn run(args: &Script, program: Program, style: Style, pid: Option<u32>) -> Result<i32, Stop> {
    let interrupts = Interrupts::with_user().map_err(|source| OutputError::Signals { source })?;
    let sink = Sink { output: args.output.clone(), ..Sink::default() };
    let output = Output::reserve(&sink, false)?;
    let program = Rc::new(program);
    let mut host = Host::new(output, args.buffered);
    host.shows_lines = program.config.show_debug_info;
    let mut machine = Machine::new(program, style, &mut host);
    if let Ok(map) = std::env::var(SERIES_CLOCK) {
        machine.series_clock(&map);
    }
    let mut running = Running {
        args,
        machine,
        host,
        hit: Host::hit(),
        timers: Vec::new(),
        child: None,
        probing: None,
        watched: None,
        said: Waiting::default(),
        said_due: Instant::now(),
        told: Vec::new(),
        pid,
        ended: None,
    };
    if args.bench || args.test {
        let Running { machine, host, hit, .. } = &mut running;
        host.begin()?;
        let status = bench::run(args.bench, style.json, machine, host, hit)?;
        running.host.flush();
        return Ok(status);
    }
    if let Err(stop) = running.begin(style.json) {
        running.abandon();
        return Err(stop);
    }
    running.follow(&interrupts);
    running.end()
}

impl Running<'_> {
    /// Attaches, and runs the blocks at begin.
    fn begin(&mut self, json: bool) -> Result<(), Stop> {
        let attached = self.attach()?;
        self.announce(attached, json);
        self.meet()?;
        self.timers = timers(self.machine.program());
        self.machine.run_all(|probe| *probe == Probe::Begin, &self.hit, &mut self.host);
        // Hits come behind begin.
        self.ended = self.machine.exit().map(|_| 0);
        Ok(())
    }
    /// Attaches; how many probes that are.
    fn attach(&mut self) -> Result<usize, Stop> {
        let counts =
            |probe: &&Probe| !matches!(probe, Probe::Bench(_) | Probe::Test(_)) && !probe.is_of_program();
        let probes = self.machine.program().blocks.iter().flat_map(|block| &block.probes);
        let own = probes.filter(counts).count();
        let command = self.args.command.as_deref();
        let host = &mut self.host;
        let frames = host.frames.clone();
        let mut now = || host.now(Clock::Boot);
        let probing = Probing::start(self.machine.program(), self.pid, (frames, self.args), &mut now);
        self.probing = probing.inspect_err(|_| self.host.release())?;
        let ahead = self.host.now(Clock::Boot).saturating_sub(self.host.now(Clock::Monotonic));
        let watched = Watched::start(self.machine.program(), (self.pid, command), ahead);
        self.watched = watched.inspect_err(|_| self.host.release())?;
        self.host.begin()?;
        let probed = self.probing.as_ref().map_or(0, |probing| probing.attached);
        let attached = own + probed + self.watched.as_ref().map_or(0, |watched| watched.count);
        if attached == 0 {
            let refused = self.probing.iter().flat_map(|probing| summary::refused(&probing.refused));
            refused.for_each(|reason| say(&format!("WARNING: {reason}\n")));
            return Err(said("No probes to attach"));
        }
        Ok(attached)
    }
    /// Notes which process is probed, and says what is not; starts the command if nothing of it is probed.
    fn meet(&mut self) -> Result<(), Stop> {
        let command = self.args.command.as_deref();
        let of_command = |pid: u32| if command.is_some() { pid } else { 0 };
        let mut notices = Vec::new();
        if let Some(watched) = &mut self.watched {
            self.host.child = of_command(watched.pid());
            notices.extend(watched.notices());
        }
        match (&mut self.probing, command) {
            (Some(probing), _) => {
                self.host.boot = Some(probing.now());
                self.host.everyone = probing.everyone();
                self.host.child = of_command(probing.pid());
                self.host.frames.look(probing.pid());
                notices.extend(summary::refused(&probing.refused));
                notices.extend(probing.notices());
            }
            (None, Some(command)) if self.watched.is_none() => {
                let child = own::launch(command).map_err(said)?;
                self.host.child = child.id();
                self.child = Some(child);
            }
            (None, _) => {}
        }
        self.warn(notices);
        Ok(())
    }
    /// Says what was not said before, unless nothing is to be said.
    fn warn(&mut self, notices: Vec<String>) {
        for notice in notices {
            if !self.args.quiet && !self.args.no_warnings && !self.told.contains(&notice) {
                say(&format!("WARNING: {notice}\n"));
                self.told.push(notice);
            }
        }
    }
    /// Says how many probes are attached.
    fn announce(&mut self, attached: usize, json: bool) {
        let noun = if attached == 1 { "probe" } else { "probes" };
        let data = format!(
            "{{\"type\": \"attached_probes\", \"count\": {attached}, \"data\": {{\"probes\": {attached}}}}}\n"
        );
        match json {
            _ if self.args.quiet => {}
            true => self.host.write(Stream::Output, data.as_bytes()),
            false => self.host.write(Stream::Error, format!("Attached {attached} {noun}\n").as_bytes()),
        }
        if self.args.verbose {
            let probes = self.machine.program().blocks.iter().flat_map(|block| &block.probes);
            let mut lines: String = probes.map(|probe| format!("Attached {probe}\n")).collect();
            lines.extend(self.probing.iter().map(|probing| probing.ran.lines(self.machine.program())));
            self.host.write(Stream::Error, lines.as_bytes());
        }
        self.host.flush();
        if std::env::var_os(NOTIFY).is_some() {
            own::print_notice(NOTIFY);
        }
    }
    /// Runs blocks until something ends the script.
    fn follow(&mut self, interrupts: &Interrupts) {
        let mut probes = self.machine.program().blocks.iter().flat_map(|block| &block.probes);
        let waits = probes.any(|probe| !matches!(probe, Probe::Begin | Probe::End));
        while (waits || self.child.is_some()) && self.goes_on() {
            match self.wait(interrupts) {
                Some(Interrupt::User) => {
                    self.settle();
                    self.machine.run_all(
                        |probe| matches!(probe, Probe::Signal(_)),
                        &self.hit,
                        &mut self.host,
                    );
                    let now = self.host.now(Clock::Boot);
                    self.ended = self.ended.or_else(|| self.machine.exit().map(|_| now));
                }
                Some(_) => return,
                None => {}
            }
            let (alive, events) = match &mut self.probing {
                Some(probing) => {
                    let alive = probing.poll();
                    let events = probing.events();
                    self.host.boot = Some(probing.now());
                    self.host.everyone = probing.everyone();
                    (alive, events)
                }
                None => (true, Vec::new()),
            };
            self.run_events(events);
            let watching =
                self.watched.as_mut().map(|watched| (watched.events(Duration::ZERO), watched.is_alive()));
            let (accesses, alive) =
                watching.map_or((Vec::new(), alive), |(all, lives)| (all, alive && lives));
            self.run_events(accesses);
            self.hear();
            self.run_timers();
            if !alive {
                return;
            }
        }
    }
    /// Waits until something is due, or may have come.
    fn wait(&self, interrupts: &Interrupts) -> Option<Interrupt> {
        let due = self.timers.iter().map(|timer| timer.due).min();
        let most = if self.probing.is_some() || self.watched.is_some() { ROUND } else { TICK };
        let wait = due.map_or(most, |due| due.saturating_duration_since(Instant::now()).min(most));
        match &self.probing {
            Some(probing) => probing.wait(interrupts, wait),
            None => interrupts.wait(wait),
        }
    }
    fn goes_on(&mut self) -> bool {
        let ended = |child: &mut Child| child.try_wait().map_or(true, |status| status.is_some());
        let gone = self.probing.is_none() && self.pid.is_some_and(|pid| !own::is_alive(pid));
        self.machine.exit().is_none()
            && self.host.failed.is_none()
            && !gone
            && !self.child.as_mut().is_some_and(ended)
    }
    /// Runs the blocks of hits: when one of them has ended the script, only of those that were before.
    fn run_events(&mut self, events: Vec<Event>) {
        for (block, hit) in events {
            let is_late = |ended| hit.nsecs.is_none_or(|at| at > ended);
            if !self.ended.is_some_and(is_late) {
                self.run_block(block, &hit);
            }
        }
    }
    fn run_block(&mut self, block: usize, hit: &Hit) {
        self.machine.run(block, hit, &mut self.host);
        if self.machine.exit().is_some() && self.ended.is_none() {
            self.ended = Some(hit.nsecs.unwrap_or_else(|| self.host.now(Clock::Boot)));
        }
    }
    /// Runs the blocks whose time has come, in the order of the source.
    fn run_timers(&mut self) {
        let now = Instant::now();
        for index in 0..self.timers.len() {
            let timer = &mut self.timers[index];
            if timer.due > now || self.machine.exit().is_some() {
                continue;
            }
            timer.due = (timer.due + timer.period).max(now);
            let (block, probe) = (timer.block, timer.probe);
            if self.probing.as_ref().is_some_and(|probing| probing.ran.is_awaited(block)) {
                self.settle();
            }
            let probe = &self.machine.program().blocks[block].probes[probe];
            let hit = Hit { probe: probe.to_string(), sort: probe.sort(), ..self.hit.clone() };
            self.run_block(block, &hit);
        }
    }
    /// Gives maps what the target has added up and assigned so far, and writes what hits said.
    fn settle(&mut self) {
        let Self { probing: Some(probing), machine, host, hit, said, ended, .. } = self else { return };
        let mut lines = said.add(probing.settle(machine)).into_iter();
        if let Some(last) = lines.find(|line| line.write(probing.ran.native(), machine, (hit, host))) {
            *ended = Some(ended.map_or(last.at(), |before| before.min(last.at())));
        }
    }
    /// The same from time to time, if hits say anything.
    fn hear(&mut self) {
        let says = self.probing.as_ref().is_some_and(|probing| probing.ran.native().has_said());
        if says && self.ended.is_none() && self.said_due <= Instant::now() {
            self.settle();
            self.said_due = Instant::now() + SAID;
        }
    }
    /// Detaches without a look at what was hit, and ends a command that was launched.
    fn abandon(self) {
        if let Some(mut child) = self.child {
            own::end(&mut child);
        }
        if let Some(probing) = self.probing {
            probing.abandon();
        }
    }
    /// Detaches, runs the blocks of the last hits and those at end, and writes the maps.
    fn end(mut self) -> Result<i32, Stop> {
        if let Some(child) = &mut self.child {
            own::end(child);
        }
        let (mut missed, mut unknown, mut nameless) = (0, 0, 0);
        if let Some(probing) = self.probing.take() {
            let (host, hit, said) = (&mut self.host, &self.hit, &mut self.said);
            let until = self.ended.unwrap_or(u64::MAX);
            let write = |native: &Native, machine: &mut Machine, lines: Vec<Line>| {
                let lines = said.all(lines);
                let mut before = lines.iter().filter(|line| line.at() <= until);
                // None behind the one that ends the script.
                before.any(|line| line.write(native, machine, (hit, host)));
            };
            let (events, [without, lost], mut finished) = probing.end(&mut self.machine, write);
            unknown = without;
            self.run_events(events);
            missed = finished.summary.missed + lost;
            nameless = finished.maps.iter().map(|one| one.nameless).sum::<u64>();
            self.warn(summary::problems(&finished.summary));
            own::end_launched(&mut finished, self.host.child);
        }
        if let Some(watched) = self.watched.take() {
            let (accesses, lost) = watched.end();
            self.run_events(accesses);
            missed += lost;
        }
        self.machine.end();
        self.machine.run_all(|probe| *probe == Probe::End, &self.hit, &mut self.host);
        if missed > 0 {
            self.host.write(Stream::Error, format!("WARNING: Total lost event count: {missed}\n").as_bytes());
        }
        if unknown > 0 {
            let text = format!(
                "WARNING: {unknown} blocks did not run: a value that they ask for was not known at the hit\n"
            );
            self.host.write(Stream::Error, text.as_bytes());
        }
        if nameless > 0 {
            let text = format!(
                "WARNING: {nameless} entries of maps are left out: they are of processes in other PID namespaces that ended at once, so it \
                 is not known which thread they are of\n"
            );
            self.host.write(Stream::Error, text.as_bytes());
        }
        self.machine.finish(&mut self.host);
        self.host.flush();
        match self.host.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(self.machine.exit().unwrap_or(0)),
        }
    }
}

/// The timers of all intervals; each is due for the first time after one period.
fn timers(program: &Program) -> Vec<Timer> {
    let now = Instant::now();
    let mut timers = Vec::new();
    for (block, def) in program.blocks.iter().enumerate() {
        for (probe, def) in def.probes.iter().enumerate() {
            if let Probe::Interval(nanos, _) = def {
                let period = Duration::from_nanos(*nanos);
                timers.push(Timer { block, probe, period, due: now + period });
            }
        }
    }
    timers
}
