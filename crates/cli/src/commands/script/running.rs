//! A script that runs: begin, intervals, signals, hits, end.
//!
//! In: a program. Out: its output and exit status. Blocks of begin run when everything is attached, before any hit is
//! looked at; those of end when everything is detached. An interval that is late runs once, not once for each time
//! that was missed. Does not: know what blocks do.

use std::process::Child;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trapline::{Interrupt, Interrupts};
use trapline_script::{Hit, Machine, Probe, Program, Stream, Style, World};

use super::host::{Host, Timer};
use super::stop::{Stop, said};
use super::{bench, own};
use crate::args::command::Script;
use crate::args::sink::Sink;
use crate::output::{Output, OutputError};

/// How long is waited at most, if nothing is due: a launched command may have ended.
const TICK: Duration = Duration::from_millis(50);

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
}

/// Runs a program to its end.
pub(super) fn run(args: &Script, program: Program, style: Style, pid: Option<u32>) -> Result<i32, Stop> {
    let interrupts = Interrupts::with_user()
        .map_err(|source| OutputError::Open { file: "the signals that end a run".to_owned(), source })?;
    let sink = Sink { output: args.output.clone(), ..Sink::default() };
    let output = Output::open(&sink, false)?;
    let program = Rc::new(program);
    if program.blocks.iter().flat_map(|block| &block.probes).any(Probe::is_of_program) {
        return Err(said("probes of programs are not attached yet"));
    }
    let mut host = Host::new(output, args.buffered);
    let mut machine = Machine::new(program, style, &mut host);
    if let Ok(map) = std::env::var(SERIES_CLOCK) {
        machine.series_clock(&map);
    }
    let mut running = Running { args, machine, host, hit: Host::hit(), timers: Vec::new(), child: None };
    if args.bench || args.test {
        let Running { machine, host, hit, .. } = &mut running;
        let status = bench::run(args.bench, style.json, machine, host, hit)?;
        running.host.flush();
        return Ok(status);
    }
    running.begin(style.json, pid)?;
    running.follow(&interrupts);
    running.end()
}

impl Running<'_> {
    /// Attaches, and runs the blocks at begin.
    fn begin(&mut self, json: bool, _: Option<u32>) -> Result<(), Stop> {
        let counts = |probe: &&Probe| !matches!(probe, Probe::Bench(_) | Probe::Test(_));
        let program = self.machine.program();
        let attached = program.blocks.iter().flat_map(|block| &block.probes).filter(counts).count();
        if attached == 0 {
            return Err(said("No probes to attach"));
        }
        if !self.args.quiet {
            let noun = if attached == 1 { "probe" } else { "probes" };
            match json {
                true => self.host.write(
                    Stream::Output,
                    format!("{{\"type\": \"attached_probes\", \"count\": {attached}, \"data\": {{\"probes\": {attached}}}}}\n")
                        .as_bytes(),
                ),
                false => self.host.write(Stream::Error, format!("Attached {attached} {noun}\n").as_bytes()),
            }
        }
        self.host.flush();
        if std::env::var_os(NOTIFY).is_some() {
            own::print_notice(NOTIFY);
        }
        if let Some(command) = &self.args.command {
            let child = own::launch(command).map_err(said)?;
            self.host.child = child.id();
            self.child = Some(child);
        }
        if self.args.verbose {
            let probes = self.machine.program().blocks.iter().flat_map(|block| &block.probes);
            let lines: String = probes.map(|probe| format!("Attached {probe}\n")).collect();
            self.host.write(Stream::Error, lines.as_bytes());
        }
        self.timers = timers(self.machine.program());
        self.machine.run_all(|probe| *probe == Probe::Begin, &self.hit, &mut self.host);
        Ok(())
    }
    /// Runs blocks until something ends the script.
    fn follow(&mut self, interrupts: &Interrupts) {
        let program = self.machine.program();
        let waits = program.blocks.iter().flat_map(|block| &block.probes);
        if self.child.is_none() && !waits.clone().any(|probe| !matches!(probe, Probe::Begin | Probe::End)) {
            return;
        }
        while self.goes_on() {
            let now = Instant::now();
            let due = self.timers.iter().map(|timer| timer.due).min();
            let wait = due.map_or(TICK, |due| due.saturating_duration_since(now).min(TICK));
            match interrupts.wait(wait) {
                Some(Interrupt::User) => {
                    self.machine.run_all(
                        |probe| matches!(probe, Probe::Signal(_)),
                        &self.hit,
                        &mut self.host,
                    );
                }
                Some(_) => return,
                None => {}
            }
            self.run_timers();
        }
    }
    fn goes_on(&mut self) -> bool {
        let ended = |child: &mut Child| child.try_wait().map_or(true, |status| status.is_some());
        self.machine.exit().is_none() && self.host.failed.is_none() && !self.child.as_mut().is_some_and(ended)
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
            let probe = &self.machine.program().blocks[block].probes[probe];
            let hit = Hit { probe: probe.to_string(), sort: probe.sort(), ..self.hit.clone() };
            self.machine.run(block, &hit, &mut self.host);
        }
    }
    /// Runs the blocks at end, and writes the maps.
    fn end(mut self) -> Result<i32, Stop> {
        if let Some(child) = &mut self.child {
            own::end(child);
        }
        self.machine.run_all(|probe| *probe == Probe::End, &self.hit, &mut self.host);
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
