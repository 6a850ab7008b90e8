//! One process under trace: which modules were looked at, what is patched there, what was counted.
//!
//! In: an opened process and the session's wishes. Out: [`ProcessReport`]s; at the end the process as it was. A look finds
//! what is newly mapped (here), `choose` the places that are meant there; `attach` patches them and takes the patches out
//! again; `kernel` probes what no jump reaches; `foreign` finds patches that others changed; `read` sums what was counted, `records` reads what was recorded, `saving` keeps it as it is. Invariants: TRC-1 a (file, offset) is one
//! site, however often its file was mapped; TRC-2 what was counted stays counted after dlclose, exec and exit. Does not:
//! choose processes. `past` lets go of all that a process which has ended does not leave.
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
use trapline_plan::{Floats, Role, Unwind};
use trapline_record::{FileOffset, Svma};
use trapline_target::kernel::UprobeMulti;
use trapline_target::perf::monotonic_ns;
use trapline_target::{FileId, Process};

use self::called::Called;
use self::costs::Costs;
use self::ending::Group;
use self::foreign::Foreign;
use self::held::Held;
use self::late::Loads;
use self::past::Leaving;
pub(crate) use self::past::{Past, Shared, Telling};
use self::procfs::children;
pub(crate) use self::procfs::cpu_time;
use self::records::Records;
use crate::error::Error;
use crate::files::Files;
use crate::filter::Filter;
pub(crate) use crate::form::Returns;
use crate::modules::{Mapped, Module, mapped};
use crate::names::Known;
use crate::question::batch_failed;
use crate::report::{By, Ended, Refused, Site, Tactic};
use crate::sites::Place;
use crate::split::Owner;
use crate::spread::Steps;
use crate::tallies::Settled;
use crate::threads::Names;
use crate::values::Values;

/// What a session wants everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    pub(crate) specs: Vec<ProbeSpec>,
    /// What is learnt of a hit.
    pub(crate) aim: Aim,
    /// In which form returns that are recorded or tallied are seen.
    pub(crate) returns: Returns,
    /// How hits are split.
    pub(crate) by: Option<By>,
    pub(crate) options: Options,
    pub(crate) durations: Durations,
    /// Nanoseconds of a tick, as the target computes with them, where returns may decide which calls are told.
    pub(crate) tick: Option<u64>,
    /// Durations fall into these steps.
    pub(crate) steps: Option<Steps>,
    /// Which calls are told, for each of the first specifications.
    pub(crate) filters: Vec<Arc<Filter>>,
    /// Which arguments point to text, for each of the first specifications, as bits.
    pub(crate) texts: Vec<u8>,
    /// Which floats records hold, for each of the first specifications.
    pub(crate) floats: Vec<Floats>,
    /// Which of the texts end at a 0, in the same order.
    pub(crate) ended: Vec<u8>,
    /// With more places than this, one more is as good as all of them.
    pub(crate) most: Option<usize>,
}

impl Wishes {
    /// In which form the ends of calls are seen, where a choice is given.
    pub(crate) const fn form(&self) -> Returns {
        match self.aim {
            Aim::Time(form) => form,
            Aim::Record { returns: true, .. }
            | Aim::Stack { returns: true, .. }
            | Aim::Tally { exits: true } => self.returns,
            _ => Returns::Exits,
        }
    }
}

/// What is learnt of a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Aim {
    /// That it happened.
    Count,
    /// How long it took, from its entry to its end in this form.
    Time(Returns),
    /// How often which value was seen: at entries, or at exits.
    Tally {
        /// At exits.
        exits: bool,
    },
    /// All that a record tells: the first arguments and, if asked for, the return.
    Record {
        /// Arguments.
        values: u8,
        /// Exits too.
        returns: bool,
    },
    /// Who called.
    Stack {
        /// How that is learnt.
        unwind: Unwind,
        /// Exits too.
        returns: bool,
    },
}

impl Aim {
    pub(crate) fn is_timed(self) -> bool {
        matches!(self, Self::Time(_))
    }
    /// Whether hits, or their values, are told one by one or in rows.
    pub(crate) const fn is_told(self) -> bool {
        matches!(self, Self::Record { .. } | Self::Tally { .. })
    }
    const fn is_recorded(self) -> bool {
        matches!(self, Self::Record { .. } | Self::Stack { .. })
    }
    /// What is wanted at an instruction.
    pub(crate) const fn at(self, at: Svma) -> Role {
        match self {
            Self::Record { .. } => Role::RecordAt(at, Unwind::None),
            Self::Stack { unwind, .. } => Role::RecordAt(at, unwind),
            _ => Role::CountAt(at),
        }
    }
    /// What is wanted at a function's entry, or at the instruction `inside` it.
    pub(crate) const fn role(self, returns: bool, inside: Option<Svma>) -> Role {
        match (self, returns, inside) {
            (Self::Record { values, .. }, true, _) => recorded(values, true, Unwind::None),
            (Self::Record { values, returns }, false, None) => recorded(values, returns, Unwind::None),
            (Self::Stack { unwind, .. }, true, _) => recorded(0, true, unwind),
            (Self::Stack { unwind, returns }, false, None) => recorded(0, returns, unwind),
            (_, false, Some(at)) if self.is_recorded() => self.at(at),
            (Self::Tally { .. }, true, _) => Role::Tally { exits: true },
            (Self::Tally { exits }, false, None) => Role::Tally { exits },
            (_, true, _) => Role::CountExits,
            (Self::Time(Returns::Stack), ..) => Role::LatencySlot,
            (Self::Time(_), ..) => Role::Latency,
            (_, false, Some(at)) => Role::CountAt(at),
            (_, false, None) => Role::CountEntry,
        }
    }
}

const fn recorded(values: u8, returns: bool, stack: Unwind) -> Role {
    let floats = Floats { arguments: 0, returned: false };
    Role::Record { values, returns, texts: 0, floats, fields: 0, stack }
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
    role: Role,
    filter: Option<Arc<Filter>>,
    values: Values,
    /// What the reader decides by, where the target's filter says it of other places.
    asked: Option<Arc<Filter>>,
    sources: Vec<Source>,
    last: u64,
    /// The same, split.
    parts: HashMap<Owner, u64>,
    /// Rows of threads that were called otherwise once.
    settled: Settled,
}

/// A process under trace.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(crate) process: Process,
    /// Its number in the session.
    nth: u32,
    name: String,
    /// Its calls belong to goroutines, which change threads.
    pub(crate) is_go: bool,
    /// What its files say of its threads.
    threads: Threads,
    /// Its threads when they were last looked at, and those that the C library did not make.
    known_threads: HashSet<u32>,
    strangers: HashSet<u32>,
    /// Where its threads keep which goroutine they run, from the thread pointer on.
    go_g: Option<i32>,
    began: Instant,
    reported: Instant,
    attached: Attached,
    records: Records,
    links: Vec<UprobeMulti>,
    /// For each segment: calls that run, by latency area.
    in_flight: Vec<HashMap<u32, u64>>,
    steps: Option<Steps>,
    /// Slots are not looked through again before this.
    reclaim_after: Instant,
    loads: Loads,
    /// An unwinder was loaded that is to be told of slots.
    untold: bool,
    sites: Vec<Tracked>,
    keys: HashMap<Key, usize>,
    /// Modules that were looked at, by file and place.
    seen: HashSet<(FileId, u64)>,
    /// Specifications that found something, by index.
    matched: HashSet<usize>,
    /// Sites that were refused.
    not_probed: HashSet<Key>,
    refused: Arc<Vec<Refused>>,
    pub(crate) misses: Vec<String>,
    pub(crate) notices: Vec<String>,
    pub(crate) children: HashSet<u32>,
    names: Names,
    /// Whom filters pass over for what they are called.
    called: Option<Called>,
    pub(crate) costs: Costs,
    foreign: Foreign,
    held: Held,
    group: Group,
    /// It was named, or had the name that was: not one that others started meanwhile, nor one of all.
    pub(crate) is_asked_for: bool,
    pub(crate) ended: Option<Ended>,
    leaving: Leaving,
    pub(crate) detached: bool,
}

impl Traced {
    /// Nothing patched yet.
    pub(crate) fn new(process: Process, nth: u32) -> Result<Self, Error> {
        let name = Known::of(&process)?.shown().to_owned();
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
            untold: false,
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
    /// Looks at modules that are new since the last call, and probes what is wanted there. Says whether any were.
    /// `before` is called before the process is seized.
    pub(crate) fn look(
        &mut self,
        files: &mut Files,
        wishes: &Wishes,
        before: &mut dyn FnMut(),
    ) -> Result<bool, Error> {
        let mut began = None;
        let looked = self.look_from(files, wishes, &mut || {
            before();
            began = Some(monotonic_ns());
        });
        self.loads.looked(&self.seen, began.unwrap_or_else(monotonic_ns));
        looked
    }
    fn look_from(
        &mut self,
        files: &mut Files,
        wishes: &Wishes,
        before: &mut dyn FnMut(),
    ) -> Result<bool, Error> {
        self.loads.reads();
        let maps = self.process.maps()?;
        self.hear_of_mappings();
        if self.loads.executed() {
            // Whoever follows it probes the new program at its entry point.
            self.end(Ended::Exec);
            return Ok(false);
        }
        if !self.attached.segments().is_empty() && !maps.iter().any(|m| m.path.starts_with("/memfd:trapline"))
        {
            self.end(Ended::Exec);
            return Ok(false);
        }
        if matches!(wishes.aim, Aim::Stack { .. }) {
            self.records.sums.get_or_insert_default();
            self.note_code(&maps);
        }
        self.loads.forget_unmapped(&maps, wishes, &mut self.seen);
        let first = self.seen.is_empty();
        let fresh: Vec<Mapped> = mapped(&self.process, &maps)
            .into_iter()
            .filter(|one| !self.seen.contains(&(one.id, one.mapping.start.0)))
            .collect();
        self.tell_unwinders(files, !fresh.is_empty() && !first);
        self.seen.extend(fresh.iter().map(|one| (one.id, one.mapping.start.0)));
        if fresh.is_empty() {
            if first {
                self.misses
                    .push(format!("process {} has mapped no program yet; try again", self.process.pid()));
            }
            return Ok(false);
        }
        let (mut modules, mut places) = self.choose(files, wishes, &fresh);
        if let (true, Some(by)) = (places.found.is_empty(), translator(&maps)) {
            // What is translated is not mapped as a program, so that nothing else explains why it has no such function.
            self.misses = vec![PatchError::Translated { pid: self.process.pid(), by }.to_string()];
        }
        self.keep_closed(&modules, &mut places);
        if !places.found.is_empty() {
            self.want_holds(files, wishes, &fresh, &mut modules, &mut places.found);
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
            self.listen(wishes);
            let done = self.attach(files, wishes, &modules, &places.found);
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
    /// Takes what the kernel told of new mappings; whether there is something new to look at.
    pub(crate) fn hear_of_mappings(&mut self) -> bool {
        self.loads.hear(self.process.pid(), &self.seen)
    }
    /// The session's end: what was mapped and not looked at is told.
    pub(crate) fn end_looks(&mut self, wishes: &Wishes) {
        self.hear_of_mappings();
        self.loads.end(wishes);
    }
    /// Forked children that inherited our patches; their hits there count with ours.
    pub(crate) fn forked(&self) -> u64 {
        if self.attached.segments().is_empty() {
            return 0;
        }
        self.loads.forked().unwrap_or(self.children.len() as u64)
    }
    /// What counts in this process alone while others' hits count with their children's.
    pub(crate) fn notice_of_children(&self) -> Option<String> {
        let kernel = self.probed().filter(|site| site.tactic == Tactic::Kernel).count();
        let (pid, forked) = (self.process.pid(), self.loads.forked().unwrap_or(self.children.len() as u64));
        (kernel > 0 && forked > 0).then(|| {
            format!(
                "{kernel} places are probed by the kernel, in process {pid} alone: hits of its {forked} forked children there are not seen"
            )
        })
    }
    /// Descriptors that are readable when the process has mapped something.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        if self.ended.is_none() { self.loads.descriptors() } else { Vec::new() }
    }
    /// How late the files of these places were probed.
    fn note_late(&mut self, modules: &[Module], places: &[Place], fresh: &[Mapped], gone: &HashSet<usize>) {
        let found: HashSet<usize> = places.iter().map(|place| place.module).collect();
        for index in found {
            let module = &modules[index];
            let place = |one: &&Mapped| one.id == module.file.id && module.is_at(&one.mapping);
            let load = fresh.iter().find(place).map(|one| (one.id, one.mapping.start.0));
            load.into_iter().for_each(|load| self.loads.probed(&module.called, load, gone.contains(&index)));
        }
    }
    /// Notes what became of the process since the last call; false when it is over.
    pub(crate) fn alive(&mut self) -> bool {
        if self.ended.is_none() {
            match cpu_time(self.process.pid()) {
                Some(_) if self.process.alive() => {
                    self.children.extend(children(self.process.pid()));
                    self.name_threads(false);
                    self.hear_of_names();
                    self.reclaim();
                    self.look_for_others();
                    self.look_at_births();
                    if self.sites.iter().any(|tracked| matches!(tracked.role, Role::Tally { .. })) {
                        self.records.forget(self.attached.segments());
                    }
                }
                _ => self.end(Ended::Exited),
            }
        }
        self.ended.is_none()
    }
    /// Tells of threads that the C library did not make, where stubs rely on it: they came after the attach, which asks all there are.
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
    /// Gives back slots of calls that were left without a return, when half of all are lent. All threads stand still for it, so that
    /// it takes no more than a hundredth of the time.
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
            // The kernel would put its probes into the next program, too, if that has the same file.
            if how == Ended::Exec {
                self.links.iter_mut().for_each(UprobeMulti::detach);
            }
            self.ended = Some(if how == Ended::Exited { self.how_it_ended() } else { how });
        }
    }
}
