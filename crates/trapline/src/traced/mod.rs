//! One process under trace: which modules were looked at, what is patched there, what was counted.
//!
//! In: an opened process and the session's requests ([`SessionRequest`]). Out: [`ProcessReport`]s; at the
//! end, the process as it was. One look goes through these steps: this file finds what is newly mapped;
//! `choose` finds the places that the probes mean there; `attach` patches them, and takes the patches out
//! again at the end. `kernel` probes the places that no jump reaches. `foreign` finds patches that other
//! tools changed. `read` sums what was counted, `records` reads records, and `saving` saves them unread.
//! `past` drops what a process that has ended no longer needs. Invariants: TRC-1 a (file, offset) is one
//! site, however often its file was mapped. TRC-2 what was counted stays counted after dlclose, exec and
//! exit. Does not: choose processes.
//!
//! [`ProcessReport`]: crate::ProcessReport

mod attach;
mod called;
mod choose;
mod costs;
mod ending;
mod foreign;
mod held;
mod kernel;
mod late;
mod past;
mod procfs;
mod read;
mod records;
mod saving;
mod stacks;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use trapline_image::ProbeSpec;
use trapline_patch::{Attached, Durations, Options, PatchError, Threads, translator};
use trapline_plan::{Action, Floats, Unwind};
use trapline_record::{FileOffset, Svma};
use trapline_tracee::kernel::UprobeMulti;
use trapline_tracee::perf::monotonic_ns;
use trapline_tracee::{FileId, Process};

use self::called::Called;
use self::costs::Costs;
use self::ending::Group;
use self::foreign::Foreign;
use self::held::Held;
use self::late::Loads;
use self::past::Leaving;
pub(crate) use self::past::{Past, ReportOptions, Shared};
use self::procfs::children;
pub(crate) use self::procfs::cpu_time;
use self::records::Records;
use crate::error::Error;
use crate::files::Files;
use crate::filter::Filter;
pub(crate) use crate::form::Returns;
use crate::group_by::GroupNumber;
use crate::histogram::LinearBuckets;
use crate::modules::{Mapped, Module, mapped};
use crate::names::ProcessNames;
use crate::report::{By, Ended, Refused, Site, Tactic};
use crate::requests::batch_failed;
use crate::sites::ProbedPlace;
use crate::tallies::Settled;
use crate::threads::Names;
use crate::values::Values;

/// What a session requests of each process.
#[derive(Clone, Debug)]
pub(crate) struct SessionRequest {
    pub(crate) specs: Vec<ProbeSpec>,
    /// Action at each hit.
    pub(crate) hit_action: HitAction,
    /// How the ends of calls are seen, where returns are recorded or aggregated.
    pub(crate) returns: Returns,
    /// How hits are grouped.
    pub(crate) by: Option<By>,
    pub(crate) options: Options,
    pub(crate) durations: Durations,
    /// Length of a clock tick, in nanoseconds times 2^32, as stubs compute with it
    /// ([`Late::tick_of`](trapline_plan::filter::Late::tick_of)); set where a return may decide whether a
    /// call passes.
    pub(crate) tick: Option<u64>,
    /// Equal steps for the histogram of durations, if requested.
    pub(crate) steps: Option<LinearBuckets>,
    /// Filter of each probe; the first is for the first specification, and so on.
    pub(crate) filters: Vec<Arc<Filter>>,
    /// Arguments that point to text, as bits, one byte for each specification in order.
    pub(crate) texts: Vec<u8>,
    /// Floats that records hold, one entry for each specification in order.
    pub(crate) floats: Vec<Floats>,
    /// Which of the texts end at a zero byte, as bits, in the same order.
    pub(crate) ended: Vec<u8>,
    /// Once more places than this are found, searching may stop: one more tells as much as all of them.
    pub(crate) most: Option<usize>,
}

impl SessionRequest {
    /// How the ends of calls are seen, for actions that leave a choice.
    pub(crate) const fn form(&self) -> Returns {
        match self.hit_action {
            HitAction::Time(form) => form,
            HitAction::Record { returns: true, .. }
            | HitAction::Stack { returns: true, .. }
            | HitAction::Tally { exits: true } => self.returns,
            _ => Returns::Exits,
        }
    }
}

/// Action at each hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HitAction {
    /// Count it.
    Count,
    /// Time the call from its entry to its end; the end is seen in this way.
    Time(Returns),
    /// Aggregate a value, at entries or at exits.
    Tally {
        /// At exits.
        exits: bool,
    },
    /// Record it: the first arguments and, if requested, the return.
    Record {
        /// How many arguments.
        values: u8,
        /// Exits too.
        returns: bool,
    },
    /// Record the stack of callers.
    Stack {
        /// How the stack is read.
        unwind: Unwind,
        /// Exits too.
        returns: bool,
    },
}

impl HitAction {
    pub(crate) fn is_timed(self) -> bool {
        matches!(self, Self::Time(_))
    }
    /// Whether hits, or their values, are reported one by one or in rows.
    pub(crate) const fn is_reported(self) -> bool {
        matches!(self, Self::Record { .. } | Self::Tally { .. })
    }
    const fn is_recorded(self) -> bool {
        matches!(self, Self::Record { .. } | Self::Stack { .. })
    }
    /// Action of a single instruction, given this action.
    pub(crate) const fn at(self, at: Svma) -> Action {
        match self {
            Self::Record { .. } => Action::RecordAt(at, Unwind::None),
            Self::Stack { unwind, .. } => Action::RecordAt(at, unwind),
            _ => Action::CountAt(at),
        }
    }
    /// Action of a function's entry, or of the instruction `inside` it.
    pub(crate) const fn action(self, returns: bool, inside: Option<Svma>) -> Action {
        match (self, returns, inside) {
            (Self::Record { values, .. }, true, _) => recorded(values, true, Unwind::None),
            (Self::Record { values, returns }, false, None) => recorded(values, returns, Unwind::None),
            (Self::Stack { unwind, .. }, true, _) => recorded(0, true, unwind),
            (Self::Stack { unwind, returns }, false, None) => recorded(0, returns, unwind),
            (_, false, Some(at)) if self.is_recorded() => self.at(at),
            (Self::Tally { .. }, true, _) => Action::Tally { exits: true },
            (Self::Tally { exits }, false, None) => Action::Tally { exits },
            (_, true, _) => Action::CountExits,
            (Self::Time(Returns::Stack), ..) => Action::LatencyByTrampoline,
            (Self::Time(_), ..) => Action::Latency,
            (_, false, Some(at)) => Action::CountAt(at),
            (_, false, None) => Action::CountEntry,
        }
    }
}

const fn recorded(values: u8, returns: bool, stack: Unwind) -> Action {
    let floats = Floats { arguments: 0, returned: false };
    Action::Record { values, returns, texts: 0, floats, fields: 0, stack }
}

/// Where the hits of a site are counted.
#[derive(Debug)]
enum Source {
    Counter { segment: usize, index: u32, latency: Option<u32> },
    Kernel { link: usize, nth: usize },
}

/// Permanent identity of a site: file, offset, and whether it counts returns.
type Key = (FileId, FileOffset, bool);

#[derive(Debug)]
struct Tracked {
    site: Arc<Site>,
    action: Action,
    filter: Option<Arc<Filter>>,
    values: Values,
    /// Of a USDT probe whose arguments are read: the filter as requested, for the reader. `filter` then names
    /// the probe's operands instead.
    asked: Option<Arc<Filter>>,
    sources: Vec<Source>,
    last: u64,
    /// Hits at the last report, by group.
    parts: HashMap<GroupNumber, u64>,
    /// Hits that were credited to a former name of their thread.
    settled: Settled,
}

/// A process under trace.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) process: Process,
    /// Number of the process in this session.
    nth: u32,
    name: String,
    /// Calls belong to goroutines, which may move between threads.
    pub(crate) is_go: bool,
    /// What the process' files show of its threads, such as where their rseq areas are.
    threads: Threads,
    /// Threads at the last look, and those of them that the C library did not make.
    known_threads: HashSet<u32>,
    strangers: HashSet<u32>,
    /// Where threads keep the pointer to their goroutine: bytes from the thread pointer.
    go_g: Option<i32>,
    began: Instant,
    reported: Instant,
    attached: Attached,
    records: Records,
    links: Vec<UprobeMulti>,
    /// Calls in flight, by latency area, for each segment.
    in_flight: Vec<HashMap<u32, u64>>,
    steps: Option<LinearBuckets>,
    /// Earliest time of the next search for return trampolines to give back.
    reclaim_after: Instant,
    loads: Loads,
    /// An unwinder was loaded that must still be told of return trampolines.
    unregistered: bool,
    sites: Vec<Tracked>,
    keys: HashMap<Key, usize>,
    /// Loads of modules that were looked at: file and start address.
    seen: HashSet<(FileId, u64)>,
    /// Indices of specifications that found something.
    matched: HashSet<usize>,
    /// Sites that were refused.
    not_probed: HashSet<Key>,
    refused: Arc<Vec<Refused>>,
    pub(crate) misses: Vec<String>,
    pub(crate) notices: Vec<String>,
    pub(crate) children: HashSet<u32>,
    names: Names,
    /// Threads that filters pass over because of their names.
    called: Option<Called>,
    pub(crate) costs: Costs,
    foreign: Foreign,
    held: Held,
    group: Group,
    /// The user named this process by pid or name. False for a launched command, for processes that others
    /// started meanwhile, and for processes that were found by the files they map.
    pub(crate) is_asked_for: bool,
    pub(crate) ended: Option<Ended>,
    leaving: Leaving,
    pub(crate) detached: bool,
}

impl Traced {
    /// A traced process in which nothing is patched yet.
    pub(crate) fn new(process: Process, nth: u32) -> Result<Self, Error> {
        let name = ProcessNames::of(&process)?.shown().to_owned();
        let loads = Loads::new(process.pid());
        let group = Group::of(process.pid());
        let now = Instant::now();
        Ok(Self {
            process,
            nth,
            name,
            is_go: false,
            threads: Threads::default(),
            known_threads: HashSet::new(),
            strangers: HashSet::new(),
            go_g: None,
            began: now,
            reported: now,
            attached: Attached::default(),
            records: Records::default(),
            links: Vec::new(),
            in_flight: Vec::new(),
            steps: None,
            reclaim_after: now,
            loads,
            unregistered: false,
            sites: Vec::new(),
            keys: HashMap::new(),
            seen: HashSet::new(),
            matched: HashSet::new(),
            not_probed: HashSet::new(),
            refused: Arc::default(),
            misses: Vec::new(),
            notices: Vec::new(),
            children: HashSet::new(),
            names: Names::default(),
            called: None,
            costs: Costs::default(),
            foreign: Foreign::new(now),
            held: Held::default(),
            group,
            is_asked_for: false,
            ended: None,
            leaving: Leaving::default(),
            detached: false,
        })
    }
    /// Sites that are probed.
    pub(crate) fn probed(&self) -> impl Iterator<Item = &Site> {
        self.sites.iter().map(|tracked| &*tracked.site)
    }
    /// Whether there is anything to report about the process.
    pub(crate) fn concerns_us(&self) -> bool {
        !self.sites.is_empty() || !self.refused.is_empty()
    }
    pub(crate) fn refused(&self) -> &[Refused] {
        &self.refused
    }
    /// Looks at modules that are new since the last call, and probes what is requested there. Returns whether
    /// there were any. `before` is called before the process is seized.
    pub(crate) fn look(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        before: &mut dyn FnMut(),
    ) -> Result<bool, Error> {
        let mut began = None;
        let looked = self.look_from(files, requested, &mut || {
            before();
            began = Some(monotonic_ns());
        });
        self.loads.looked(&self.seen, began.unwrap_or_else(monotonic_ns));
        looked
    }
    fn look_from(
        &mut self,
        files: &mut Files,
        requested: &SessionRequest,
        before: &mut dyn FnMut(),
    ) -> Result<bool, Error> {
        self.loads.reads();
        let maps = self.process.maps()?;
        self.read_mappings();
        if self.loads.executed() {
            // The follower probes the new program at its entry point.
            self.end(Ended::Exec);
            return Ok(false);
        }
        if !self.attached.segments().is_empty() && !maps.iter().any(|m| m.path.starts_with("/memfd:trapline"))
        {
            self.end(Ended::Exec);
            return Ok(false);
        }
        if matches!(requested.hit_action, HitAction::Stack { .. }) {
            self.records.sums.get_or_insert_default();
            self.note_code(&maps);
        }
        self.loads.forget_unmapped(&maps, requested, &mut self.seen);
        let first = self.seen.is_empty();
        let fresh: Vec<Mapped> = mapped(&self.process, &maps)
            .into_iter()
            .filter(|one| !self.seen.contains(&(one.id, one.mapping.start.0)))
            .collect();
        self.register_unwinders(files, !fresh.is_empty() && !first);
        self.seen.extend(fresh.iter().map(|one| (one.id, one.mapping.start.0)));
        if fresh.is_empty() {
            if first {
                self.misses
                    .push(format!("process {} has mapped no program yet; try again", self.process.pid()));
            }
            return Ok(false);
        }
        let (mut modules, mut places) = self.choose(files, requested, &fresh);
        if let (true, Some(by)) = (places.found.is_empty(), translator(&maps)) {
            // Translated code is not mapped as a program, so nothing else would explain why it has no such
            // function.
            self.misses = vec![PatchError::Translated { pid: self.process.pid(), by }.to_string()];
        }
        self.keep_closed(&modules, &mut places);
        if !places.found.is_empty() {
            self.request_holds(files, requested, &fresh, &mut modules, &mut places.found);
        }
        if !first {
            self.misses.clear();
        }
        if let Some(program) = modules.iter().find(|module| module.is_program && module.file.image.is_go()) {
            self.is_go = true;
            self.go_g = program.file.image.go_g_in_tls().and_then(|at| i32::try_from(at).ok());
        }
        let mut refused = places.refused;
        if !places.found.is_empty() {
            before();
            self.listen(requested);
            let done = self.attach(files, requested, &modules, &places.found);
            let (why, failed) = match done {
                Ok(why) => (why, None),
                Err(error) if error.is_gone() => return Err(error),
                Err(error) => {
                    let why = places.found.iter().map(|place| batch_failed(place, &error));
                    (why.enumerate().collect(), Some(error))
                }
            };
            self.loads.patched();
            let (why, gone) = self.refusals_of_sites(&modules, &places.found, why);
            refused.extend(why);
            Arc::make_mut(&mut self.refused).extend(refused);
            if let Some(failed) = failed {
                return Err(failed);
            }
            self.note_all_names();
            if !first && !self.held.again() {
                self.note_late(&modules, &places.found, &fresh, &gone);
            }
        } else if !refused.is_empty() {
            Arc::make_mut(&mut self.refused).extend(refused);
        }
        Ok(true)
    }
    /// Takes the kernel's records of new mappings. Returns whether there is something new to look at.
    pub(crate) fn read_mappings(&mut self) -> bool {
        self.loads.read_records(self.process.pid(), &self.seen)
    }
    /// At the session's end: counts what was mapped and never looked at.
    pub(crate) fn end_looks(&mut self, requested: &SessionRequest) {
        self.read_mappings();
        self.loads.end(requested);
    }
    /// Number of forked children that inherited the patches; their hits count with the parent's.
    pub(crate) fn forked(&self) -> u64 {
        if self.attached.segments().is_empty() {
            return 0;
        }
        self.loads.forked().unwrap_or(self.children.len() as u64)
    }
    /// Notice about kernel uprobes: they count in this process alone, while other hits in its children count
    /// with its own.
    pub(crate) fn notice_of_children(&self) -> Option<String> {
        let kernel = self.probed().filter(|site| site.tactic == Tactic::Kernel).count();
        let (pid, forked) = (self.process.pid(), self.loads.forked().unwrap_or(self.children.len() as u64));
        (kernel > 0 && forked > 0).then(|| {
            format!(
                "{kernel} places are probed by the kernel, in process {pid} alone: hits of its {forked} forked children there are not seen"
            )
        })
    }
    /// Descriptors that become readable when the process has mapped something.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        if self.ended.is_none() { self.loads.descriptors() } else { Vec::new() }
    }
    /// Notes how late the files of these places were probed.
    fn note_late(
        &mut self,
        modules: &[Module],
        places: &[ProbedPlace],
        fresh: &[Mapped],
        gone: &HashSet<usize>,
    ) {
        let found: HashSet<usize> = places.iter().map(|place| place.module).collect();
        for index in found {
            let module = &modules[index];
            let place = |one: &&Mapped| one.id == module.file.id && module.is_at(&one.mapping);
            let load = fresh.iter().find(place).map(|one| (one.id, one.mapping.start.0));
            load.into_iter().for_each(|load| self.loads.probed(&module.called, load, gone.contains(&index)));
        }
    }
    /// Notes what became of the process since the last call. Returns false once it is over.
    pub(crate) fn alive(&mut self) -> bool {
        if self.ended.is_none() {
            match cpu_time(self.process.pid()) {
                Some(_) if self.process.alive() => {
                    self.children.extend(children(self.process.pid()));
                    self.name_threads(false);
                    self.read_names();
                    self.reclaim();
                    self.look_for_others();
                    self.look_at_births();
                    if self.sites.iter().any(|tracked| matches!(tracked.action, Action::Tally { .. })) {
                        self.records.forget(self.attached.segments());
                    }
                }
                _ => self.end(Ended::Exited),
            }
        }
        self.ended.is_none()
    }
    /// Warns of threads that the C library did not make, where stubs rely on the number that it keeps.
    /// Attaching checks all threads that exist then; this finds those made later.
    fn look_at_births(&mut self) {
        if self.detached || self.attached.segments().is_empty() {
            return;
        }
        let Ok(threads) = self.process.threads() else { return };
        let threads: HashSet<u32> = threads.into_iter().collect();
        if threads.is_subset(&self.known_threads) {
            return;
        }
        let Ok(strangers) = self.attached.strangers(&self.process) else { return };
        self.known_threads = threads;
        for tid in strangers {
            if self.strangers.insert(tid) && self.strangers.len() == 1 {
                self.notices.push(format!(
                    "thread {tid} of process {} was made without the C library while it was probed, and shares another thread's \
                     control block or has none: hits may be lost from then on, so the counts are lower bounds; attach again, and \
                     it is counted exactly",
                    self.process.pid()
                ));
            }
        }
    }
    /// Gives back return trampolines of calls that were left without a return, once half of all are in use.
    /// All threads stop for it, so it takes at most a hundredth of the time.
    fn reclaim(&mut self) {
        let lent = self.attached.lent(&self.process).ok().flatten();
        if self.detached
            || self.reclaim_after > Instant::now()
            || lent.is_none_or(|(all, lent)| lent < all / 2)
        {
            return;
        }
        if let Ok(done) = self.attached.reclaim(&self.process) {
            self.reclaim_after = Instant::now() + done.stopped * 100;
            self.costs.longest_stop = self.costs.longest_stop.max(done.stopped);
        }
    }
    pub(crate) fn end(&mut self, how: Ended) {
        if self.ended.is_none() {
            // The kernel would put its uprobes into the next program, too, if that has the same file.
            if how == Ended::Exec {
                self.links.iter_mut().for_each(UprobeMulti::detach);
            }
            self.ended = Some(if how == Ended::Exited { self.how_it_ended() } else { how });
        }
    }
}
