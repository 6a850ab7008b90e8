//! One process under trace: which modules were looked at, what is patched there, what was counted.
//!
//! In: an opened process and the session's wishes. Out: [`ProcessReport`]s; at the end the process as it was.
//! Invariants: TRC-1 a (file, offset) is one site, however often its file was mapped; TRC-2 what was counted stays counted
//! after dlclose, exec and exit. Does not: choose processes.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trapline_image::ProbeSpec;
use trapline_patch::{Attached, Durations, Options};
use trapline_plan::{KernelSite, Role};
use trapline_record::{FileOffset, RemoteAddr};
use trapline_target::kernel::UprobeMulti;
use trapline_target::{BatchReport, FileId, MapWatcher, Mapping, Process, TargetError};

use crate::error::Error;
use crate::files::Files;
use crate::modules::{Mapped, Module, mapped};
use crate::names::Known;
use crate::question::{Question, kernel_cannot_time, refusals, tactics};
use crate::report::{By, Count, Ended, ProcessReport, Refused, Share, Site, Tactic, Times};
use crate::sites::{Miss, Place, Places, miss_text};
use crate::split::{Owner, parts, shares};
use crate::spread::{Scale, Steps};
use crate::threads::Names;
use crate::times::{in_flight, read_times, stamps_resident};

/// What a session wants everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    pub(crate) specs: Vec<ProbeSpec>,
    /// Time calls instead of counting.
    pub(crate) timed: bool,
    pub(crate) options: Options,
    pub(crate) durations: Durations,
    /// Durations fall into these steps.
    pub(crate) steps: Option<Steps>,
}

/// Where a site's hits are counted.
#[derive(Debug)]
enum Source {
    Counter { segment: usize, index: u32, latency: Option<u32> },
    Kernel { link: usize, nth: usize },
}

/// What names a site for good: file, offset, and whether returns are meant.
type Key = (FileId, FileOffset, bool);

#[derive(Debug)]
struct Tracked {
    site: Arc<Site>,
    sources: Vec<Source>,
    last: u64,
    /// The same, split.
    parts: HashMap<Owner, u64>,
}

/// What attaching and detaching cost, and left.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) attach: Duration,
    pub(crate) detach: Duration,
    pub(crate) longest_stop: Duration,
    pub(crate) interrupted: u64,
    pub(crate) restarted: u64,
    pub(crate) guards: u64,
    pub(crate) left_mapped: u64,
    pub(crate) foreign_sites: u64,
}

impl Costs {
    fn add(&mut self, batch: &BatchReport) {
        self.longest_stop = self.longest_stop.max(batch.longest_stop);
        self.interrupted += batch.interrupted_syscalls;
        self.restarted += batch.restarted_timeouts;
        self.guards += batch.guards;
    }
}

/// A process under trace.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) process: Process,
    name: String,
    began: Instant,
    reported: Instant,
    cpu_began: Duration,
    cpu_last: Duration,
    attached: Attached,
    links: Vec<UprobeMulti>,
    /// Semaphores that we raised for markers which only the kernel's probes reach; others are in the journal.
    raised: Vec<RemoteAddr>,
    /// For each segment: calls that run, by latency area.
    in_flight: Vec<HashMap<u32, u64>>,
    steps: Option<Steps>,
    watcher: Option<MapWatcher>,
    sites: Vec<Tracked>,
    keys: HashMap<Key, usize>,
    /// Modules that were looked at, by file and place.
    seen: HashSet<(FileId, u64)>,
    /// Specifications that found something, by index.
    matched: HashSet<usize>,
    pub(crate) places: u64,
    refused: Arc<Vec<Refused>>,
    pub(crate) misses: Vec<String>,
    pub(crate) notices: Vec<String>,
    pub(crate) children: HashSet<u32>,
    names: Names,
    pub(crate) costs: Costs,
    pub(crate) ended: Option<Ended>,
    pub(crate) detached: bool,
}

impl Traced {
    /// Nothing patched yet.
    pub(crate) fn new(process: Process) -> Result<Self, Error> {
        let name = Known::of(&process)?.shown().to_owned();
        // Without the right to it, the maps are polled, and a library reloaded between two looks is missed.
        let watcher = MapWatcher::new(process.pid()).ok();
        let now = Instant::now();
        let cpu = cpu_time(process.pid()).unwrap_or_default();
        Ok(Self {
            process,
            name,
            began: now,
            reported: now,
            cpu_began: cpu,
            cpu_last: cpu,
            attached: Attached::default(),
            links: Vec::new(),
            raised: Vec::new(),
            in_flight: Vec::new(),
            steps: None,
            watcher,
            sites: Vec::new(),
            keys: HashMap::new(),
            seen: HashSet::new(),
            matched: HashSet::new(),
            places: 0,
            refused: Arc::default(),
            misses: Vec::new(),
            notices: Vec::new(),
            children: HashSet::new(),
            names: Names::default(),
            costs: Costs::default(),
            ended: None,
            detached: false,
        })
    }
    /// Places that are probed.
    pub(crate) fn probed(&self) -> impl Iterator<Item = &Site> {
        self.sites.iter().map(|tracked| &*tracked.site)
    }
    /// Whether it has anything to report, or to say.
    pub(crate) fn concerns_us(&self) -> bool {
        !self.sites.is_empty() || !self.refused.is_empty()
    }
    pub(crate) fn refused(&self) -> &[Refused] {
        &self.refused
    }
    /// CPU time that it used since we attached.
    pub(crate) fn cpu_time(&self) -> Duration {
        self.cpu_last.saturating_sub(self.cpu_began)
    }
    /// Looks at modules that are new since the last call, and probes what is wanted there. Says whether any were.
    /// `before` is called before the process is seized.
    pub(crate) fn look(
        &mut self,
        files: &mut Files,
        wishes: &Wishes,
        before: &mut dyn FnMut(),
    ) -> Result<bool, Error> {
        let maps = self.process.maps()?;
        if !self.attached.segments().is_empty() && !maps.iter().any(|m| m.path.starts_with("/memfd:trapline"))
        {
            self.end(Ended::Exec);
            return Ok(false);
        }
        self.forget_unmapped(&maps);
        let first = self.seen.is_empty();
        let fresh: Vec<Mapped> = mapped(&self.process, &maps)
            .into_iter()
            .filter(|one| !self.seen.contains(&(one.id, one.mapping.start.0)))
            .collect();
        if fresh.is_empty() {
            if first {
                self.misses
                    .push(format!("process {} has mapped no program yet; try again", self.process.pid()));
            }
            return Ok(false);
        }
        self.seen.extend(fresh.iter().map(|one| (one.id, one.mapping.start.0)));
        let (modules, places) = self.choose(files, wishes, &fresh);
        if !first {
            self.misses.clear();
        }
        self.places += (places.found.len() + places.refused.len()) as u64;
        let mut refused = places.refused;
        if !places.found.is_empty() {
            before();
            let start = Instant::now();
            self.attach(wishes, &modules, &places.found, &mut refused)?;
            self.costs.attach += start.elapsed();
        }
        if !refused.is_empty() {
            Arc::make_mut(&mut self.refused).extend(refused);
        }
        Ok(true)
    }
    /// What was unmapped, or mapped anew, is to be looked at again when it is there.
    fn forget_unmapped(&mut self, maps: &[Mapping]) {
        let there: HashSet<(FileId, u64)> = maps.iter().filter_map(|m| Some((m.file?, m.start.0))).collect();
        let anew: HashSet<(FileId, u64)> = match &mut self.watcher {
            Some(watcher) => {
                let own = watcher.poll().into_iter().filter(|new| new.pid == self.process.pid());
                own.map(|new| (new.file, new.start.0)).collect()
            }
            None => HashSet::new(),
        };
        self.seen.retain(|load| there.contains(load) && !anew.contains(load));
    }
    /// The places that the specifications mean in new modules.
    pub(crate) fn choose(
        &mut self,
        files: &mut Files,
        wishes: &Wishes,
        fresh: &[Mapped],
    ) -> (Vec<Module>, Places) {
        let mut opened: Vec<Option<usize>> = vec![None; fresh.len()];
        let (mut modules, mut places) = (Vec::new(), Places::default());
        for (nth, spec) in wishes.specs.iter().enumerate() {
            let anywhere = spec.file.is_none();
            let mut missed: (Vec<String>, Vec<Miss>) = Default::default();
            for (index, one) in fresh.iter().enumerate() {
                if anywhere && self.matched.contains(&nth) {
                    break;
                }
                let called = match spec.file.as_deref() {
                    Some(name) => one.path_as(&self.process, name),
                    None => Some(one.usual_path(&self.process)),
                };
                let Some(called) = called else { continue };
                let module = match opened[index] {
                    Some(module) => module,
                    None => match one.open(&self.process, files) {
                        Ok(module) => {
                            self.note_replaced(&module);
                            modules.push(module);
                            opened[index] = Some(modules.len() - 1);
                            modules.len() - 1
                        }
                        Err(why) => {
                            if !anywhere {
                                self.notices.push(why);
                            }
                            continue;
                        }
                    },
                };
                modules[module].called = called;
                match places.select(Some(&self.process), &modules, module, spec, wishes.timed) {
                    Ok(()) => drop(self.matched.insert(nth)),
                    Err(miss) => {
                        missed.0.push(modules[module].called.clone());
                        missed.1.push(miss);
                    }
                }
            }
            if !self.matched.contains(&nth) {
                self.misses.push(match (&spec.file, missed.0.is_empty()) {
                    (Some(file), true) => {
                        format!("no file {file} is mapped by {} ({})", self.name, self.process.pid())
                    }
                    _ => miss_text(spec, &missed.0, &missed.1),
                });
            }
        }
        (modules, places)
    }
    fn note_replaced(&mut self, module: &Module) {
        if module.file.replaced {
            self.notices.push(format!(
                "{} was replaced on disk since process {} mapped it; the mapped file is probed",
                module.file.path,
                self.process.pid()
            ));
        }
    }
    /// Whether guard traps can be served: the program's runtime leaves them to us, and no thread blocks them now.
    pub(crate) fn is_guarded(&self, modules: &[Module]) -> bool {
        const SIGTRAP: u64 = 1 << 4;
        let is_go = modules.iter().any(|module| module.is_program && module.file.image.is_go());
        let blocks = |tid| self.process.thread_status(tid).is_ok_and(|status| status.blocked & SIGTRAP != 0);
        !is_go && self.process.threads().is_ok_and(|threads| !threads.into_iter().any(blocks))
    }
    fn attach(
        &mut self,
        wishes: &Wishes,
        modules: &[Module],
        places: &[Place],
        refused: &mut Vec<Refused>,
    ) -> Result<(), Error> {
        self.steps = wishes.steps;
        let question = Question::new(modules, places, self.is_guarded(modules));
        let report = self.attached.add(&self.process, &question.request(&question.asked(), wishes))?;
        let tactics = tactics(&report);
        let segment = self.attached.segments().len().saturating_sub(1);
        for (probe, place) in (0u32..).zip(places) {
            if let Some(&tactic) = tactics.get(&probe) {
                let latency = (place.role == Role::Latency).then_some(probe);
                self.track(modules, place, tactic, Source::Counter { segment, index: probe, latency });
            }
        }
        refused.extend(refusals(&report, places).into_iter().map(|(_, refused)| refused));
        self.attach_kernel(modules, places, &report.kernel, refused);
        if report.placed.is_empty() && !report.kernel.is_empty() {
            for (module, semaphore) in question.semaphores() {
                self.raise(module.bias.live(semaphore));
            }
        }
        self.costs.add(&report.batch);
        Ok(())
    }
    /// Places that no jump reaches: one link for each file and kind.
    fn attach_kernel(
        &mut self,
        modules: &[Module],
        places: &[Place],
        sites: &[(u32, KernelSite)],
        refused: &mut Vec<Refused>,
    ) {
        let mut groups: HashMap<(usize, bool), Vec<&Place>> = HashMap::new();
        for place in sites.iter().filter_map(|(_, site)| places.get(site.probe as usize)) {
            match place.role {
                Role::Latency => refused.push(kernel_cannot_time(place)),
                role => groups.entry((place.module, role == Role::CountExits)).or_default().push(place),
            }
        }
        for ((module, returns), places) in groups {
            let path = format!("/proc/{}/root{}", self.process.pid(), modules[module].file.path);
            let offsets: Vec<u64> = places.iter().map(|place| place.offset.0).collect();
            match UprobeMulti::attach(Path::new(&path), &offsets, Some(self.process.pid()), returns) {
                Ok(link) => {
                    self.links.push(link);
                    let link = self.links.len() - 1;
                    for (nth, place) in places.into_iter().enumerate() {
                        self.track(modules, place, Tactic::Kernel, Source::Kernel { link, nth });
                    }
                }
                Err(error) => refused.extend(places.into_iter().map(|place| Refused {
                    probe: place.probe.clone(),
                    kind: "kernel-uprobe",
                    reason: format!("no jump fits, and {error}"),
                })),
            }
        }
    }
    fn raise(&mut self, at: RemoteAddr) {
        match add_to_word(&self.process, at, 1) {
            Ok(()) => self.raised.push(at),
            Err(error) => self.notices.push(format!("a marker's semaphore was not raised: {error}")),
        }
    }
    fn track(&mut self, modules: &[Module], place: &Place, tactic: Tactic, source: Source) {
        let file = &modules[place.module].file;
        let key = (file.id, place.offset, place.role == Role::CountExits);
        if let Some(&known) = self.keys.get(&key) {
            self.sites[known].sources.push(source);
            return;
        }
        let site = Site {
            probe: place.probe.clone(),
            aliases: place.aliases.clone(),
            file: file.path.clone(),
            offset: place.offset.0,
            label: place.label.clone(),
            tactic,
        };
        self.keys.insert(key, self.sites.len());
        self.sites.push(Tracked {
            site: Arc::new(site),
            sources: vec![source],
            last: 0,
            parts: HashMap::new(),
        });
    }
    /// Notes what became of the process since the last call; false when it is over.
    pub(crate) fn alive(&mut self) -> bool {
        if self.ended.is_none() {
            match cpu_time(self.process.pid()) {
                Some(cpu) if self.process.alive() => {
                    self.cpu_last = cpu;
                    self.children.extend(children(self.process.pid()));
                    self.name_threads(false);
                }
                _ => self.end(Ended::Exited),
            }
        }
        self.ended.is_none()
    }
    pub(crate) fn end(&mut self, how: Ended) {
        self.ended.get_or_insert(how);
    }
    fn hits(&self, tracked: &Tracked, kernel: &[Vec<u64>]) -> u64 {
        let one = |source: &Source| match *source {
            Source::Counter { segment, index, .. } => {
                let segment = &self.attached.segments()[segment];
                let (view, threads) = (segment.view(), segment.threads());
                match threads.is_empty() {
                    true => segment.counters().read(view, index),
                    false => threads.rows(view).map(|(row, _)| threads.read(view, row, index)).sum(),
                }
            }
            Source::Kernel { link, nth } => {
                kernel.get(link).and_then(|counts| counts.get(nth)).copied().unwrap_or(0)
            }
        };
        tracked.sources.iter().map(one).fold(0, u64::wrapping_add)
    }
    /// Hits of each site, split. Sites that the kernel counts are not.
    fn split(&mut self, by: By) -> Vec<Vec<Share>> {
        self.name_threads(true);
        let (segments, owned) = (self.attached.segments(), self.attached.counts_by_cpu());
        let one = |tracked: &mut Tracked| {
            let mut now = HashMap::new();
            for source in &tracked.sources {
                if let Source::Counter { segment, index, .. } = *source {
                    parts(by, owned, &segments[segment], index, &mut now);
                }
            }
            shares(by, now, &mut tracked.parts, &self.names)
        };
        self.sites.iter_mut().map(one).collect()
    }
    /// Looks up the names of threads that hit something, before they end.
    fn name_threads(&mut self, again: bool) {
        let rows = self.attached.segments().iter().flat_map(|segment| segment.threads().rows(segment.view()));
        let counted: HashSet<u32> = rows.filter_map(|(_, thread)| thread).collect();
        if !counted.is_empty() {
            self.names.look(self.process.pid(), &self.children, &counted, again);
        }
    }
    /// All counts now.
    pub(crate) fn report(&mut self, scale: Scale, timed: bool, by: Option<By>) -> ProcessReport {
        let now = Instant::now();
        let kernel: Vec<Vec<u64>> = self.links.iter().map(|link| link.counts().unwrap_or_default()).collect();
        let times = if timed { self.times(scale) } else { Vec::new() };
        let split = match by {
            Some(by) if !timed => self.split(by),
            _ => vec![Vec::new(); self.sites.len()],
        };
        let hits: Vec<u64> = match timed {
            true => times.iter().map(|times| times.spread.calls()).collect(),
            false => self
                .sites
                .iter()
                .zip(&split)
                .map(|(tracked, shares)| match shares[..] {
                    [] => self.hits(tracked, &kernel),
                    // What is shown adds up.
                    _ => shares.iter().fold(0, |sum: u64, share| sum.wrapping_add(share.hits)),
                })
                .collect(),
        };
        let mut split = split.into_iter();
        let counts = self.sites.iter().zip(&hits).map(|(tracked, &hits)| Count {
            site: tracked.site.clone(),
            hits,
            delta: hits.wrapping_sub(tracked.last),
            shares: split.next().unwrap_or_default(),
        });
        let counts: Vec<Count> = if timed { Vec::new() } else { counts.collect() };
        self.sites.iter_mut().zip(&hits).for_each(|(tracked, &hits)| tracked.last = hits);
        let report = ProcessReport {
            pid: self.process.pid(),
            name: self.name.clone(),
            seconds: now.duration_since(self.began).as_secs_f64(),
            delta_seconds: now.duration_since(self.reported).as_secs_f64(),
            counts,
            times,
            refused: self.refused.clone(),
            missed: self.missed(),
            interrupted_syscalls: self.costs.interrupted,
            restarted_timeouts: self.costs.restarted,
            ended: self.ended.clone(),
        };
        self.reported = now;
        report
    }
    /// Calls that run now, in the process and in its forked children. After its end, or a detach that freed the stamps, what
    /// was seen last stands.
    fn look_in_flight(&mut self) {
        let segments = self.attached.segments();
        if self.ended.is_some() || segments.is_empty() {
            return;
        }
        let now =
            segments.iter().map(|segment| in_flight(&self.process, segment)).collect::<Option<Vec<_>>>();
        let Some(mut now) = now else { return };
        for child in self.children.iter().filter_map(|&pid| Process::open(pid).ok()) {
            let maps = child.maps().unwrap_or_default();
            for (segment, sum) in segments.iter().zip(&mut now) {
                // A child that runs another program, or was forked before, has no stamps of ours at that address.
                if !maps.iter().any(|mapping| mapping.file == Some(segment.memfd())) {
                    continue;
                }
                for (function, calls) in in_flight(&child, segment).unwrap_or_default() {
                    *sum.entry(function).or_default() += calls;
                }
            }
        }
        self.in_flight = now;
    }
    fn times(&mut self, scale: Scale) -> Vec<Times> {
        self.look_in_flight();
        let one = |tracked: &Tracked| {
            let areas = tracked.sources.iter().filter_map(|source| match *source {
                Source::Counter { segment, latency: Some(index), .. } => Some((segment, index)),
                _ => None,
            });
            let running = |(segment, index): (usize, u32)| {
                self.in_flight.get(segment).and_then(|calls| calls.get(&index)).copied().unwrap_or(0)
            };
            let in_flight = areas.clone().map(running).sum();
            let segments = self.attached.segments();
            read_times(
                areas.map(|(at, index)| (&segments[at], index)),
                tracked.site.clone(),
                in_flight,
                scale,
                self.steps,
            )
        };
        self.sites.iter().map(one).collect()
    }
    /// After the last report: gives counters and latency areas back; returns the bytes of memory that stay behind.
    pub(crate) fn forget(&mut self) -> u64 {
        if self.ended.is_some() {
            return 0;
        }
        let mut resident = 0;
        for segment in self.attached.segments() {
            if let Err(error) = segment.forget() {
                self.notices.push(format!("memory was not given back: {error}"));
            }
            resident += segment.resident() + stamps_resident(&self.process, segment);
        }
        resident
    }
    pub(crate) fn missed(&self) -> u64 {
        self.attached.segments().iter().map(trapline_patch::Segment::missed).sum()
    }
    /// Whether each hit there takes a system call.
    pub(crate) fn asks_for_thread(&self) -> bool {
        self.attached.asks_for_thread()
    }
    pub(crate) fn guard_hits(&self) -> u64 {
        self.costs.guards
            + self.attached.segments().iter().map(trapline_patch::Segment::guard_hits).sum::<u64>()
    }
    /// Hits recorded by our stubs, and by the kernel's probes.
    pub(crate) fn total_hits(&self) -> (u64, u64) {
        let split = |kernel: bool| {
            let some =
                self.sites.iter().filter(move |tracked| (tracked.site.tactic == Tactic::Kernel) == kernel);
            some.map(|tracked| tracked.last).fold(0, u64::wrapping_add)
        };
        (split(false), split(true))
    }
    /// Takes all patches out. Counts can still be read.
    pub(crate) fn detach(&mut self, options: &Options) {
        for at in self.raised.drain(..) {
            // If the process is gone, so is the semaphore.
            drop(add_to_word(&self.process, at, u16::MAX));
        }
        if std::mem::replace(&mut self.detached, true) || self.attached.segments().is_empty() {
            return;
        }
        let start = Instant::now();
        if self.ended == Some(Ended::Exec) {
            return;
        }
        let report = self.attached.detach(&self.process, options);
        if report.gone {
            self.end(Ended::Exited);
        }
        for restored in &report.restored {
            if restored.pid != self.process.pid() {
                self.children.insert(restored.pid);
            }
            self.costs.add(&restored.batch);
            self.costs.left_mapped += restored.stays_mapped;
            let foreign = restored.left.iter().filter(|left| left.found.is_some());
            self.costs.foreign_sites += foreign.count() as u64;
        }
        for untouched in &report.untouched {
            let (pid, why) = (untouched.pid, &untouched.why);
            self.notices
                .push(format!("could not detach from process {pid}: {why}; try: trapline detach -p {pid}"));
        }
        self.costs.detach = start.elapsed();
    }
}

/// Adds to a `u16` of a process, wrapping.
fn add_to_word(process: &Process, at: RemoteAddr, by: u16) -> Result<(), TargetError> {
    let mut bytes = [0; 2];
    process.read(at, &mut bytes)?;
    process.write_text(at, &u16::from_le_bytes(bytes).wrapping_add(by).to_le_bytes())
}

/// User and system time of a process, from /proc/PID/stat.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    // Linux reports it in units of USER_HZ, which is 100 on every architecture that we run on.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    let ticks = fields.next()?.parse::<u32>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(TICK * ticks)
}

/// Processes that the threads of a process have forked.
fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}
