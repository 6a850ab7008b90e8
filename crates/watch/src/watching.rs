//! Watchpoints at work: from arming to the last event.
//!
//! In: processes with their points. Out: [`Event`]s in the order of time, with what was there before and after. Invariants:
//! WCH-1, WCH-2 (see [`crate::arm`]), WCH-3 (see [`crate::value`]), WCH-4; WCH-5 every access counts once.
//!
//! **Order.** Each CPU has a ring of its own, so records of several CPUs must be merged. A record's time is taken before it is
//! published, by code that is not preempted; so when a round of reading begins at time *t*, a later round has seen all records
//! from before *t*. Events are therefore handed out one round late: all up to the time at which the round before began.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use trapline_insn::x86_64::Accessor;
use trapline_record::RemoteAddr;
use trapline_target::Process;
use trapline_target::perf::{Access, Breakpoint, Family, SampleOptions, SampleRings, monotonic_ns};

use crate::arm::{ArmedThread, Progress, arm};
use crate::error::WatchError;
use crate::record::{self, Layout, Read, Record, Sample};
use crate::rotate::Rotation;
use crate::site::{self, AHEAD, BACK, Code};
use crate::value::{Chain, Change, How, Range};

/// Pages of each CPU's ring: 4 MiB hold some 15,000 samples, a sixth of a second of the most that one CPU can trap.
const PAGES: u64 = 1024;
/// Longest function that is decoded from its start.
const LONGEST_FUNCTION: u64 = 1 << 20;
/// Addresses from here on are the kernel's.
const KERNEL: u64 = 1 << 63;

/// Something to watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// Where and what.
    pub at: Breakpoint,
    /// What the user calls it.
    pub label: String,
}

/// A process and what to watch in it.
#[derive(Debug)]
pub struct Target {
    /// The process.
    pub process: Process,
    /// Its points; at different addresses.
    pub points: Vec<Point>,
}

/// How to watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whether forked children are watched with their parents.
    pub forks: bool,
    /// Call chains, by frame pointers.
    pub stack: bool,
    /// Values; without them an event is cheaper and says only who and when.
    pub values: bool,
    /// Values may be read at the trap by a BPF program, where permitted.
    pub bpf: bool,
    /// Take turns of this length where debug registers do not suffice.
    pub rotate: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { forks: false, stack: false, values: true, bpf: true, rotate: None }
    }
}

/// What an access was.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A store, or a read-modify-write.
    Write,
    /// A load.
    Read,
    /// The instruction was about to run.
    Execute,
    /// The kernel, for a system call of the thread.
    Kernel,
    /// By an instruction that could not be told.
    Unknown,
}

/// One access.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Index of the target given.
    pub target: usize,
    /// Index of its point.
    pub point: usize,
    /// Process: the target, or a forked child.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Its name.
    pub comm: Rc<str>,
    /// CPU.
    pub cpu: u32,
    /// The instruction that made the access; where the thread then stood if that could not be told. For the kernel's, the
    /// system call's return address.
    pub ip: RemoteAddr,
    /// What it was.
    pub kind: Kind,
    /// What was there before and after.
    pub change: Change,
    /// Callers, innermost first, if asked for.
    pub stack: Vec<RemoteAddr>,
}

/// What was not seen, and what arming took.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tally {
    /// Events handed out.
    pub events: u64,
    /// Of these, with an exact value.
    pub exact: u64,
    /// Dropped by the kernel because a ring was full.
    pub lost: u64,
    /// Records that made no sense.
    pub malformed: u64,
    /// Threads armed.
    pub threads: usize,
    /// Threads born since, which inherit.
    pub born: u64,
    /// Time to arm all.
    pub arming: Duration,
    /// Time to disarm all.
    pub disarming: Duration,
    /// Nanoseconds that each point was covered, by target, when they take turns; empty otherwise.
    pub covered_ns: Vec<Vec<u64>>,
    /// How long it was watched.
    pub watched: Duration,
}

/// Where functions begin, for decoding.
pub trait CodeMap {
    /// Start of the function that holds an address.
    fn start_of(&mut self, process: &Process, ip: RemoteAddr) -> Option<RemoteAddr>;
    /// Code as the file has it, for a process that has ended.
    fn code(&mut self, process: &Process, addr: RemoteAddr, len: u64) -> Option<Vec<u8>> {
        let _ = (process, addr, len);
        None
    }
}

/// Knows no function.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMap;

impl CodeMap for NoMap {
    fn start_of(&mut self, _: &Process, _: RemoteAddr) -> Option<RemoteAddr> {
        None
    }
}

#[derive(Debug)]
struct Lanes {
    threads: Vec<ArmedThread>,
    rotation: Option<Rotation>,
}

/// Watchpoints at work. Dropping it disarms.
pub struct Watching {
    rings: SampleRings,
    layout: Layout,
    options: Options,
    targets: Vec<Target>,
    lanes: Vec<Lanes>,
    /// Event identifier → target and thread that it was opened for.
    ids: HashMap<u64, (usize, u32)>,
    /// Threads with events of their own, and when they got them.
    own: HashMap<u32, u64>,
    names: HashMap<u32, Rc<str>>,
    chains: HashMap<(u32, usize, usize), Chain>,
    sites: HashMap<(usize, u64), Rc<[Accessor]>>,
    map: Box<dyn CodeMap>,
    pending: Vec<(Sample, Option<u64>)>,
    horizon_ns: u64,
    began_ns: u64,
    tally: Tally,
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
    /// Arms all points in all threads of all targets, then starts them.
    ///
    /// # Errors
    /// [`WatchError`]; then nothing is armed.
    pub fn start(
        targets: Vec<Target>,
        options: Options,
        map: Box<dyn CodeMap>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, WatchError> {
        let begun = Instant::now();
        for target in &targets {
            check(target)?;
        }
        let (rings, lanes) = open(&targets, options, progress)?;
        let layout =
            Layout { registers: options.values, stack: options.stack, value_ids: rings.value_ids().to_vec() };
        let mut watching = Self {
            rings,
            layout,
            options,
            targets,
            lanes,
            ids: HashMap::new(),
            own: HashMap::new(),
            names: HashMap::new(),
            chains: HashMap::new(),
            sites: HashMap::new(),
            map,
            pending: Vec::new(),
            horizon_ns: 0,
            began_ns: 0,
            tally: Tally::default(),
        };
        watching.enable()?;
        watching.tally.arming = begun.elapsed();
        Ok(watching)
    }
    fn enable(&mut self) -> Result<(), WatchError> {
        let now = monotonic_ns();
        self.began_ns = now;
        self.lanes.iter_mut().filter_map(|lanes| lanes.rotation.as_mut()).for_each(|one| one.begin(now));
        for (index, (lanes, target)) in self.lanes.iter().zip(&self.targets).enumerate() {
            for (point, one) in target.points.iter().enumerate() {
                let value = self.options.values.then(|| read_bytes(&target.process, one.at)).flatten();
                self.chains.insert((target.process.pid(), index, point), Chain::starting_with(value));
            }
            for thread in &lanes.threads {
                self.own.insert(thread.tid, now);
                for armed in &thread.armed {
                    let failed = |source| WatchError::Kernel { tid: thread.tid, source };
                    armed.ids().map_err(failed)?.into_iter().for_each(|id| {
                        self.ids.insert(id, (index, thread.tid));
                    });
                    armed.enable().map_err(failed)?;
                }
            }
            self.tally.threads += lanes.threads.len();
        }
        Ok(())
    }
    /// Why no program reads values at the trap, if none does and one was wanted.
    #[must_use]
    pub fn no_bpf(&self) -> Option<&str> {
        self.rings.no_values()
    }
    /// Whether accesses of the kernel are seen.
    #[must_use]
    pub const fn sees_kernel(&self) -> bool {
        self.rings.options().kernel
    }
    /// When it began, on the clock of events.
    #[must_use]
    pub const fn start_ns(&self) -> u64 {
        self.began_ns
    }
    /// The targets.
    #[must_use]
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }
    /// What was counted so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let watched = Duration::from_nanos(monotonic_ns().saturating_sub(self.began_ns));
        Tally { watched, ..self.tally.clone() }
    }
    /// Whether a target still lives.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.targets.iter().any(|target| target.process.alive())
    }
    /// Waits for events, at most so long, and hands out those that are sure to be in order.
    pub fn poll(&mut self, at_most: Duration) -> Vec<Event> {
        self.rings.wait(at_most);
        let now = monotonic_ns();
        self.read();
        let events = self.release(self.horizon_ns);
        self.horizon_ns = now;
        self.rotate(now);
        events
    }
    /// Disarms and hands out the rest.
    #[must_use]
    pub fn finish(mut self) -> (Vec<Event>, Tally) {
        let begun = Instant::now();
        let now = monotonic_ns();
        self.tally.watched = Duration::from_nanos(now.saturating_sub(self.began_ns));
        for lanes in &mut self.lanes {
            if let Some(rotation) = &mut lanes.rotation {
                rotation.account(now);
                self.tally.covered_ns.push(rotation.covered_ns().to_vec());
            }
            // Closing the last descriptor of an event removes it, and its inherited copies, before it returns.
            lanes.threads.clear();
        }
        self.tally.disarming = begun.elapsed();
        self.read();
        let events = self.release(u64::MAX);
        (events, self.tally)
    }
    fn rotate(&mut self, now: u64) {
        for (index, lanes) in self.lanes.iter_mut().enumerate() {
            let Some(rotation) = &mut lanes.rotation else { continue };
            let target = &self.targets[index];
            for (lane, point) in rotation.turn(now) {
                for thread in &mut lanes.threads {
                    // A thread that ended needs no move; its event takes one all the same.
                    drop(thread.armed[lane].move_to(target.points[point].at));
                }
                // Nobody looked meanwhile.
                self.chains.iter_mut().filter(|(key, _)| (key.1, key.2) == (index, point)).for_each(
                    |(_, chain)| {
                        chain.doubt();
                    },
                );
            }
        }
    }
    /// Takes all records out of the rings.
    fn read(&mut self) {
        let Self { rings, layout, pending, names, own, tally, .. } = self;
        let mut lost = false;
        let mut last: HashMap<u32, Read> = HashMap::new();
        let sound = rings.drain(|cpu, kind, body| match record::parse(layout, kind, body) {
            Record::Read(read) => drop(last.insert(cpu, read)),
            Record::Sample(sample) => {
                let same = |read: &Read| (read.tid, read.addr) == (sample.tid, sample.addr);
                let word = last.remove(&cpu).filter(same).and_then(|read| read.word);
                pending.push((sample, word));
            }
            Record::Lost(count) => {
                tally.lost += count;
                lost = true;
            }
            Record::Fork { tid, parent, time_ns } => {
                tally.born += 1;
                own.retain(|&known, armed| known != tid || *armed > time_ns);
                let name = names.entry(parent).or_insert_with(|| name_of(parent)).clone();
                names.insert(tid, name);
            }
            Record::Exit { tid, time_ns } => own.retain(|&known, armed| known != tid || *armed > time_ns),
            Record::Comm { tid, name } => drop(names.insert(tid, name.into())),
            Record::Malformed => tally.malformed += 1,
            Record::Other => {}
        });
        if lost || !sound {
            self.tally.malformed += u64::from(!sound);
            self.chains.values_mut().for_each(Chain::doubt);
        }
    }
    /// Events up to a time, in order.
    fn release(&mut self, until_ns: u64) -> Vec<Event> {
        let (mut ready, later) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition::<Vec<_>, _>(|one| one.0.time_ns <= until_ns);
        self.pending = later;
        ready.sort_by_key(|one| one.0.time_ns);
        let mut events: Vec<Event> =
            ready.into_iter().filter_map(|(sample, word)| self.event(sample, word)).collect();
        if self.options.values {
            self.complete(&mut events);
        }
        self.tally.events += events.len() as u64;
        self.tally.exact += events.iter().filter(|event| event.change.how.is_exact()).count() as u64;
        events
    }
    /// Reads what no event told: the last one of each point is as late as can be.
    fn complete(&mut self, events: &mut [Event]) {
        let mut read: HashMap<(u32, usize, usize), Option<u64>> = HashMap::new();
        for event in
            events.iter_mut().filter(|event| event.change.how == How::Unknown && event.kind != Kind::Execute)
        {
            let key = (event.pid, event.target, event.point);
            let target = &self.targets[event.target];
            let value = *read.entry(key).or_insert_with(|| {
                let same = event.pid == target.process.pid();
                same.then(|| read_bytes(&target.process, target.points[event.point].at)).flatten()
            });
            if let Some(chain) = self.chains.get_mut(&key) {
                let mut apart = *chain;
                apart.late(&mut event.change, value);
                chain.doubt();
            }
        }
    }
    fn event(&mut self, sample: Sample, word: Option<u64>) -> Option<Event> {
        let Some(&(target, opened_for)) = self.ids.get(&sample.id) else {
            self.tally.malformed += 1;
            return None;
        };
        // It has events of its own, and inherited some while it was being armed: count once.
        if opened_for != sample.tid && self.own.contains_key(&sample.tid) {
            return None;
        }
        let points = &self.targets[target].points;
        let Some(point) = points.iter().position(|one| one.at.addr.0 == sample.addr) else {
            self.tally.malformed += 1;
            return None;
        };
        let at = points[point].at;
        let (kind, ip, change) = self.access(target, point, at, &sample, word);
        let comm = self.names.entry(sample.tid).or_insert_with(|| name_of(sample.tid)).clone();
        Some(Event {
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
            // The first entry is where the thread stands.
            stack: sample.stack.iter().skip(1).map(|&ip| RemoteAddr(ip)).collect(),
        })
    }
    /// What the access was, who made it, and what it changed.
    fn access(
        &mut self,
        target: usize,
        point: usize,
        at: Breakpoint,
        sample: &Sample,
        word: Option<u64>,
    ) -> (Kind, u64, Change) {
        let range = Range { addr: at.addr.0, len: at.len };
        let nothing = Change { before: None, before_exact: false, after: None, how: How::Unknown };
        if at.access == Access::Execute {
            return (Kind::Execute, sample.ip, nothing);
        }
        let regs = sample.regs;
        let in_kernel = sample.ip >= KERNEL;
        let told = regs.filter(|_| !in_kernel).and_then(|regs| {
            let sites = self.site(target, sample.ip);
            let effects = sites.iter().map(|one| (one, one.effect(&regs.file)));
            effects
                .into_iter()
                .find(|(_, effect)| range.touched_by(effect))
                .map(|(one, effect)| (*one, effect))
        });
        let effect = told.map(|(_, effect)| effect);
        let chain = self.chains.entry((sample.pid, target, point)).or_default();
        let change = if self.options.values { chain.step(range, effect.as_ref(), word) } else { nothing };
        let called = || {
            // A call pushed its return address and went: that address is there now.
            let pushed = regs?.file.gprs[4] == range.addr && range.len == 8;
            change.after.filter(|_| pushed && !in_kernel)
        };
        match told {
            Some((accessor, _)) if accessor.writes() => (Kind::Write, accessor.addr(), change),
            Some((accessor, _)) => (Kind::Read, accessor.addr(), change),
            None if in_kernel => (Kind::Kernel, regs.map_or(sample.ip, |regs| regs.ip), change),
            None => match called() {
                Some(returns_to) => (Kind::Write, returns_to, change),
                None => (Kind::Unknown, sample.ip, change),
            },
        }
    }
    /// Candidates for an address, decoded once.
    fn site(&mut self, target: usize, ip: u64) -> Rc<[Accessor]> {
        let Self { targets, map, sites, .. } = self;
        let process = &targets[target].process;
        sites.entry((target, ip)).or_insert_with(|| decode(process, map.as_mut(), ip).into()).clone()
    }
}

fn decode(process: &Process, map: &mut dyn CodeMap, ip: u64) -> Vec<Accessor> {
    // The byte before belongs to the function even when the access was its last instruction.
    let start = map
        .start_of(process, RemoteAddr(ip.wrapping_sub(1)))
        .filter(|start| ip.checked_sub(start.0).is_some_and(|len| len <= LONGEST_FUNCTION));
    let addr = start.map_or(ip.saturating_sub(BACK), |start| start.0);
    // Close to the end of a mapping there is less behind.
    for ahead in [AHEAD, 0] {
        let mut bytes = vec![0; (ip - addr + ahead) as usize];
        let live = process.read(RemoteAddr(addr), &mut bytes).is_ok();
        let filed = if live { None } else { map.code(process, RemoteAddr(addr), bytes.len() as u64) };
        if let Some(bytes) = filed.or_else(|| live.then_some(bytes)) {
            return site::accessors(Code { bytes: &bytes, addr, in_step: start.is_some() }, ip);
        }
    }
    Vec::new()
}

fn read_bytes(process: &Process, at: Breakpoint) -> Option<u64> {
    let mut bytes = [0; 8];
    process.read(at.addr, &mut bytes[..usize::from(at.len.min(8))]).ok()?;
    Some(u64::from_le_bytes(bytes))
}

fn name_of(tid: u32) -> Rc<str> {
    crate::holders::comm(tid).into()
}

/// Ranges that a debug register can hold, each once.
fn check(target: &Target) -> Result<(), WatchError> {
    for (index, point) in target.points.iter().enumerate() {
        let Breakpoint { addr, len, access } = point.at;
        if access != Access::Execute {
            crate::spec::check_range(addr, len.into())?;
        }
        if target.points[..index].iter().any(|other| other.at.addr == addr) {
            return Err(WatchError::Twice { addr, pid: target.process.pid() });
        }
    }
    Ok(())
}

/// Rings and armed threads; where the kernel's accesses may not be watched, without those.
fn open(
    targets: &[Target],
    options: Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<(SampleRings, Vec<Lanes>), WatchError> {
    let sampled = SampleOptions {
        family: if options.forks { Family::Forks } else { Family::Threads },
        registers: options.values,
        stack: options.stack,
        values: options.values && options.bpf,
        kernel: true,
        pages: PAGES,
    };
    let mut attempt = |kernel| {
        let rings = SampleRings::open(SampleOptions { kernel, ..sampled })
            .map_err(|source| WatchError::Rings { source })?;
        let lanes = targets.iter().map(|target| lanes(target, &rings, options, progress));
        let lanes = lanes.collect::<Result<Vec<Lanes>, WatchError>>()?;
        Ok((rings, lanes))
    };
    match attempt(true) {
        Err(WatchError::Denied { .. }) => attempt(false),
        done => done,
    }
}

fn lanes(
    target: &Target,
    rings: &SampleRings,
    options: Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Lanes, WatchError> {
    let points: Vec<Breakpoint> = target.points.iter().map(|point| point.at).collect();
    let error = match arm(&target.process, rings, &points, progress) {
        Ok(threads) => return Ok(Lanes { threads, rotation: None }),
        Err(error) => error,
    };
    let (WatchError::NoSlots(full), Some(slice)) = (&error, options.rotate) else { return Err(error) };
    let lanes = full.free as usize;
    if lanes == 0 || lanes >= points.len() {
        return Err(error);
    }
    let threads = arm(&target.process, rings, &points[..lanes], progress)?;
    let rotation = Rotation::new(points.len(), lanes, slice);
    debug_assert_eq!(rotation.now().len(), lanes, "a point for each lane");
    Ok(Lanes { threads, rotation: Some(rotation) })
}
