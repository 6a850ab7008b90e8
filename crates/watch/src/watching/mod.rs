//! Watchpoints at work: from arming to the last event.
//!
//! In: processes with their points. Out: [`Event`]s in the order of time ([`stream`]), with the values before and after
//! ([`access`]); the processes that executed another program. Invariants: WCH-1, WCH-2 (see [`crate::arm`]), WCH-3, WCH-4;
//! WCH-5 every access counts once; WCH-6 (see [`shielded`]). Does not: know names; a caller that does looks them up again
//! after an exec ([`Watching::add`]).

mod access;
mod opening;
mod shielded;
mod stream;
mod threads;
mod words;

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trapline_record::RemoteAddr;
use trapline_tracee::perf::{Armed, Breakpoint, SampleRings, monotonic_ns, wait_for_handlers};
use trapline_tracee::{Shield, TargetError};

use crate::accounts::Reserved;
use crate::arm::{Armory, Progress};
use crate::births::Births;
use crate::error::WatchError;
use crate::native;
use crate::record::Layout;
use access::{Accesses, read_bytes};
use opening::{Group, Opened, check, group, open};
use stream::{Entry, Stream};
pub use words::{AccessKind, CodeMap, Event, Exec, NoMap, Options, Point, Tally, Target};
use words::{First, Member, Trap, name_of};

/// Watchpoints at work. Dropping it disarms.
pub struct Watching {
    // Events are closed before debug registers are given back.
    groups: Vec<Group>,
    members: HashMap<u32, Member>,
    rings: SampleRings,
    births: Births,
    inherit: bool,
    options: Options,
    targets: Vec<Target>,
    /// Time from which each target's accesses are reported.
    since_ns: Vec<u64>,
    /// Event identifier → target and thread for which the event was opened.
    ids: HashMap<u64, (usize, u32)>,
    names: HashMap<u32, Rc<str>>,
    accesses: Accesses,
    stream: Stream,
    /// Keeps the programs alive where traps may come without their reasons. Dropped after the events.
    shield: Option<Shield>,
    /// Why that cannot be had for a process, if it is needed.
    unshielded: Vec<(u32, String)>,
    /// Time at which each process last executed another program.
    execed: HashMap<u32, u64>,
    execs: Vec<Exec>,
    began_ns: u64,
    tally: Tally,
    stuck: Option<(usize, RemoteAddr)>,
}

impl std::fmt::Debug for Watching {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watching")
            .field("targets", &self.targets)
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}

impl Watching {
    /// Arms all points in all threads of all targets, and reports accesses from then on.
    ///
    /// # Errors
    /// [`WatchError`]; nothing is armed then.
    pub fn start(
        targets: Vec<Target>,
        options: Options,
        map: Box<dyn CodeMap>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, WatchError> {
        let begun = Instant::now();
        targets.iter().try_for_each(check)?;
        let (shield, unshielded) = shielded::over(&targets, options);
        let Opened { rings, births, inherit, groups } = open(&targets, options, progress)?;
        let layout =
            Layout { registers: options.values, stack: options.stack, value_ids: rings.value_ids().to_vec() };
        let mut watching = Self {
            groups: Vec::new(),
            members: HashMap::new(),
            rings,
            births,
            inherit,
            options,
            targets: Vec::new(),
            since_ns: Vec::new(),
            ids: HashMap::new(),
            names: HashMap::new(),
            accesses: Accesses::new(options.values, map),
            stream: Stream::new(layout),
            shield,
            unshielded,
            execed: HashMap::new(),
            execs: Vec::new(),
            began_ns: monotonic_ns(),
            tally: Tally::default(),
            stuck: None,
        };
        let last = targets.len();
        for (target, group) in targets.into_iter().zip(groups) {
            watching.begin(target, group, watching.began_ns)?;
        }
        watching.tally.arming = begun.elapsed();
        watching.read_first(0..last);
        Ok(watching)
    }
    /// Watches a process that has executed another program, with its new points; returns the index of the new
    /// target.
    ///
    /// # Errors
    /// [`WatchError`]; nothing more is armed then than before. Also returned if the process has executed yet
    /// another program by now: another [`Exec`] reports that.
    pub fn add(&mut self, target: Target, progress: &mut dyn FnMut(Progress)) -> Result<usize, WatchError> {
        check(&target)?;
        let pid = target.process.pid();
        self.cover_again(pid);
        let Self { rings, births, inherit, options, .. } = self;
        let mut armory = Armory { rings, births, inherit: *inherit };
        let group = group(&mut armory, &target, *options, progress)?;
        self.births.read();
        if self.births.has_exec(pid) {
            drop(group);
            let how = "it runs another program by now".to_owned();
            return Err(TargetError::Gone { pid, how }.into());
        }
        let index = self.targets.len();
        self.begin(target, group, monotonic_ns())?;
        self.read_first(index..index + 1);
        Ok(index)
    }
    /// Begins to report a target's accesses: those from `now` on.
    fn begin(&mut self, target: Target, mut group: Group, now: u64) -> Result<(), WatchError> {
        let (index, pid) = (self.targets.len(), target.process.pid());
        if let Some(rotation) = &mut group.rotation {
            rotation.begin(now);
        }
        for (point, one) in target.points.iter().enumerate() {
            let value = self.options.values.then(|| read_bytes(&target.process, one.at)).flatten();
            self.accesses.begin((pid, index, point), value);
        }
        for thread in &mut group.threads {
            let (tid, reserved) = (thread.tid, std::mem::take(&mut thread.reserved));
            self.members.insert(tid, Member { pid, target: index, own: true, reserved });
            for armed in &thread.armed {
                let failed = |source| WatchError::Kernel { tid, source };
                for id in armed.ids().map_err(failed)? {
                    self.ids.insert(id, (index, tid));
                }
            }
        }
        self.tally.threads += group.threads.len();
        self.targets.push(target);
        self.groups.push(group);
        self.since_ns.push(now);
        Ok(())
    }
    /// Reads the present values, in a way that shows whether the first access finds them (see [`access`]).
    fn read_first(&mut self, targets: std::ops::Range<usize>) {
        if !self.options.values {
            return;
        }
        let from_ns = monotonic_ns();
        let mut read = Vec::new();
        for index in targets.filter(|&index| self.groups[index].rotation.is_none()) {
            let Target { process, points } = &self.targets[index];
            for (point, one) in points.iter().enumerate() {
                let at = (process.pid(), index, point);
                read.extend(read_bytes(process, one.at).map(|value| First { at, value, from_ns }));
            }
        }
        if wait_for_handlers().is_ok() {
            let now = monotonic_ns();
            read.into_iter().for_each(|first| self.stream.push(now, Entry::First(first)));
        }
    }
    /// Processes that ended before they were armed. To be asked before anything else is.
    pub fn ended_unarmed(&self) -> impl Iterator<Item = u32> {
        let unarmed = self.targets.iter().zip(&self.groups).filter(|(_, group)| group.threads.is_empty());
        unarmed.map(|(target, _)| target.process.pid())
    }
    /// Why no BPF program reads values at the trap, if one was requested and none does.
    #[must_use]
    pub fn no_bpf(&self) -> Option<&str> {
        if self.options.values && self.options.bpf && native::TRAPS_BEFORE {
            return Some("this processor traps before an access, not behind it");
        }
        self.rings.no_values()
    }
    /// The instruction at which a program could not go on while it was watched, and its target. It is no
    /// longer watched.
    #[must_use]
    pub const fn stuck(&self) -> Option<(usize, RemoteAddr)> {
        self.stuck
    }
    /// Whether accesses by the kernel are seen.
    #[must_use]
    pub const fn sees_kernel(&self) -> bool {
        self.rings.options().kernel
    }
    /// Whether threads inherit breakpoints; otherwise each is armed some time after its birth.
    #[must_use]
    pub const fn inherits(&self) -> bool {
        self.inherit
    }
    /// The time at which watching began, on the clock of events.
    #[must_use]
    pub const fn start_ns(&self) -> u64 {
        self.began_ns
    }
    /// The targets; those that were added come last.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }
    /// Processes that executed another program since the last call. They are not watched any more, unless
    /// they are added.
    pub fn take_execs(&mut self) -> Vec<Exec> {
        std::mem::take(&mut self.execs)
    }
    /// The counts so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let watched = Duration::from_nanos(monotonic_ns().saturating_sub(self.began_ns));
        let (lost, malformed) = (self.stream.lost, self.stream.malformed + self.tally.malformed);
        Tally { watched, lost, malformed, ..self.tally.clone() }
    }
    /// Whether a thread has its breakpoints, according to the records read by now.
    #[must_use]
    pub fn watches(&self, tid: u32) -> bool {
        self.members.contains_key(&tid)
    }
    /// Whether a target still lives and is watched.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.stuck.is_none() && self.targets.iter().any(|target| target.process.alive())
    }
    /// Waits for events, at most `at_most`, and hands out those that are certain to be in order.
    pub fn poll(&mut self, at_most: Duration) -> Vec<Event> {
        self.rings.wait(self.births.rings(), at_most);
        let mut events = self.round();
        // Records about threads must not wait for the next round.
        if self.stream.has_tasks() {
            events.extend(self.round());
        }
        self.rotate(monotonic_ns());
        events
    }
    fn round(&mut self) -> Vec<Event> {
        self.take_lost();
        let (entries, sound) = self.stream.round(&self.rings, &mut self.births);
        if !(sound || self.inherit) {
            self.find_births();
        }
        self.hand_out(entries)
    }
    /// Disarms and hands out the rest.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Event>, Tally) {
        let begun = Instant::now();
        let now = monotonic_ns();
        let mut dropped = Some(0);
        let turns = self.groups.iter().any(|group| group.rotation.is_some());
        for (index, group) in self.groups.iter_mut().enumerate() {
            if let Some(rotation) = &mut group.rotation {
                rotation.account(now);
                self.tally.covered_ns.push(rotation.covered_ns().to_vec());
            } else if turns {
                let all = now.saturating_sub(self.since_ns[index]);
                self.tally.covered_ns.push(vec![all; self.targets[index].points.len()]);
            }
            let armed = group.threads.iter().flat_map(|thread| &thread.armed);
            dropped = armed.map(Armed::lost).fold(dropped, |sum, lost| Some(sum? + lost?));
            // Closing the last descriptor of an event removes it, and its inherited copies, before it returns.
            group.threads.clear();
        }
        self.tally.disarming = begun.elapsed();
        self.end_shield();
        let entries = self.stream.rest(&self.rings, &mut self.births);
        // No thread is armed any more.
        self.inherit = true;
        let events = self.hand_out(entries);
        let watched = Duration::from_nanos(now.saturating_sub(self.began_ns));
        let lost_more = dropped.is_none() && self.stream.ends_in_doubt;
        let lost = dropped.unwrap_or(self.stream.lost);
        (events, Tally { watched, lost, lost_more, ..self.tally() })
    }
    fn rotate(&mut self, now: u64) {
        for (index, group) in self.groups.iter_mut().enumerate() {
            let Some(rotation) = &mut group.rotation else { continue };
            let points = &self.targets[index].points;
            let before = rotation.now().to_vec();
            for (lane, point) in rotation.turn(now) {
                let (from, to) = (points[before[lane]].at, points[point].at);
                let mut all: Vec<&mut Reserved> = self
                    .members
                    .values_mut()
                    .filter(|one| one.target == index)
                    .map(|one| &mut one.reserved)
                    .collect();
                if !change_all(&mut all, lane, from, to) {
                    rotation.stay(lane, before[lane]);
                    continue;
                }
                for thread in &mut group.threads {
                    // A thread that ended needs no move. Its event accepts one all the same.
                    drop(thread.armed[lane].move_to(to));
                }
                self.accesses.uncovered(index, point);
            }
        }
    }
    /// Turns entries into events, in order.
    fn hand_out(&mut self, entries: Vec<Entry>) -> Vec<Event> {
        let mut events = Vec::new();
        for entry in entries {
            match entry {
                Entry::Trap(trap) => events.extend(self.event(&trap)),
                Entry::Task(record) => self.became(record),
                Entry::Doubt => self.accesses.doubt(),
                Entry::Trust(now) => self.accesses.trust(now),
                Entry::First(first) => self.accesses.first(first),
                Entry::Lost(sample) => self.explain(sample, &mut events),
            }
        }
        if self.options.values {
            self.accesses.complete(&self.targets, &mut events);
        }
        if let Some((target, ip)) = self.accesses.take_stuck() {
            self.stuck = Some((target, RemoteAddr(ip)));
            // Disarm all: a process that was forked or shares memory may be stuck at the same place.
            self.groups.iter_mut().for_each(|group| group.threads.clear());
        }
        self.tally.events += events.len() as u64;
        self.tally.exact += events.iter().filter(|event| event.change.how.is_exact()).count() as u64;
        events
    }
    fn event(&mut self, trap: &Trap) -> Option<Event> {
        let sample = &trap.sample;
        let Some(&(target, opened_for)) = self.ids.get(&sample.id) else {
            self.tally.malformed += 1;
            return None;
        };
        // The thread has events of its own, and inherited some while it was being armed. Count the access
        // once.
        if opened_for != sample.tid && self.members.get(&sample.tid).is_some_and(|one| one.own) {
            return None;
        }
        // The process has executed another program, in which the address has no meaning.
        if self.execed.get(&sample.pid).is_some_and(|&when| self.since_ns[target] < when) {
            return None;
        }
        // It was made while threads were still being armed.
        if sample.time_ns < self.since_ns[target] {
            return None;
        }
        let points = &self.targets[target].points;
        let Some(point) = points.iter().position(|one| one.at.addr.0 == sample.addr) else {
            self.tally.malformed += 1;
            return None;
        };
        Some(self.reported(target, point, trap))
    }
    fn reported(&mut self, target: usize, point: usize, trap: &Trap) -> Event {
        let sample = &trap.sample;
        let (kind, ip, change) = self.accesses.access((target, &self.targets[target]), point, trap);
        let comm = self.names.entry(sample.tid).or_insert_with(|| name_of(sample.tid)).clone();
        Event {
            time_ns: sample.time_ns,
            target,
            point,
            pid: sample.pid,
            tid: sample.tid,
            comm,
            cpu: sample.cpu,
            ip: RemoteAddr(ip),
            kind,
            change,
            // The first entry is the address at which the thread stands.
            stack: sample.stack.iter().skip(1).map(|&ip| RemoteAddr(ip)).collect(),
        }
    }
}

/// Replaces one breakpoint by another in the accounts of all threads, or in none.
fn change_all(all: &mut [&mut Reserved], lane: usize, from: Breakpoint, to: Breakpoint) -> bool {
    let Some(refused) = all.iter_mut().position(|reserved| reserved.change(lane, to).is_err()) else {
        return true;
    };
    for reserved in &mut all[..refused] {
        // The register that was given up a moment ago may have been taken by now. Then the account shows less
        // than is held.
        let _back = reserved.change(lane, from);
    }
    false
}
