//! How this process notices what it maps, so that a registration also applies to a file that is mapped later.
//!
//! In: the kernel's records of the process' own mappings; libc's calls, probed by the engine itself; the
//! user's [`rescan`](super::rescan). Out: looks at the maps; counts of what each look found, by what had told
//! of it ([`Noticed`]). Invariants: LRN-1 a notice from any source only leads to reading the maps; the maps
//! are read after it, and they alone are believed. LRN-2 no thread waits without a limit for the one that
//! looks. LRN-3 what only a look found, what the kernel dropped and what was armed late is counted. Does not:
//! patch (`state`, `place`), or answer hits.
//!
//! # Sources
//!
//! | source | sees | does not see |
//! |---|---|---|
//! | records: a dummy perf event on every CPU, inherited by threads | every `mmap` of code and every `mprotect` that makes code, by whatever call: libc's, ld.so's, musl's, Go's, a raw one | unmapping, `mremap` |
//! | the loader's own notice (`_dl_debug_state`, which exists for debuggers; both libcs call it), probed | `dlopen`, `dlclose`, in the moment between mapping and constructors | raw calls |
//! | calls: libc's `mmap`, `mprotect`, `mremap`, probed; only where there are no records | programs that load code by themselves, through libc | raw calls |
//! | a look that the user asked for | everything | when |
//! | a miss: the program asks what is mapped at an address ([`code_at`](super::code_at)), and no file's code is known there | everything | when; and what is never asked for |
//!
//! The loader's notice is probed even where there are records, since it comes at a moment when the thread
//! that maps can wait (below).
//!
//! # The thread that looks
//!
//! One thread of the engine's does this, made at the first registration, and it does nothing else. No look is
//! requested from within a hit: a handler neither locks nor waits. The probes on calls move the instruction
//! pointer to a function of the engine's, which runs when the hit is over.
//!
//! The thread blocks all signals that are sent, and none that an instruction raises: it runs patched code
//! like any other thread, and SIGTRAP must reach it.
//!
//! | step | the thread that looks (T) | one that asks (A) |
//! |---|---|---|
//! | A1 | | `asked` := `asked` + 1 (its ticket) |
//! | A2 | | ring the bell |
//! | A3 | | the loader's notice only: wait until `done` ≥ ticket, at most [`PATIENCE`] |
//! | T1 | poll the rings and the bell | |
//! | T2 | clear the bell | |
//! | T3 | load `asked`, and how many misses there were (`misses` says which of them ask) | |
//! | T4 | take the engine's lock; take all records out of the rings | |
//! | T5 | if there were any, or a thread or a miss asked: read the maps, patch what changed | |
//! | T6 | `done` := what T3 loaded; wake askers | |
//!
//! ## Interleavings
//!
//! - *A1 before T3*: the maps are read (T5) after it, so they show what A had mapped; T6 lets A go on.
//! - *A1 after T3*: A2 is after T2, so T1 of the next round returns at once.
//! - *A between A1 and A2 at T3*: served in this round; the bell rings once for nothing.
//! - *A mapping is made, and its record written, before T4*: taken there; the maps of T5 are younger. *After
//!   T4*: the record stays, and makes the ring readable for the next T1. The mapping may be in T5's maps
//!   already. Then that look counts it as found without a notice, or by the call that asked, and the next
//!   look finds nothing new.
//! - *A record is written after T4, and the look itself takes it out*: a look takes records out again before each
//!   time that it reads the maps. It settles only the files of the records that it began with. So the record
//!   stays in `pending`, and the bell wakes T for it: the ring has nothing to report any more.
//! - *Another thread holds the lock* (it registers): T waits at T4. That thread takes the records out itself
//!   before it reads the maps. It leaves those of other files for T in `pending`, which T treats as if it had
//!   taken them out.
//! - *A holds something that T, or the holder of the lock, needs*: A is in the loader and holds the loader's
//!   lock. The engine itself never takes the loader's locks, but code that it calls may: a consumer's
//!   destructor, or an allocator with thread-local storage of a library. Hence [`PATIENCE`]: A goes on, and
//!   what is armed after that counts as late (`Noticed::impatient`). To make this rare, a look makes no
//!   threads, since a new thread takes the loader's lock for its destructors. What must be known of a file's
//!   code is found out at its registration, and in a look by T alone. A registration in a library's
//!   constructor makes no threads either (`loader`); T, if it is made there, begins when the loader is done.
//! - *A is the holder itself* (a destructor that calls `dlclose`): as above.
//! - *A is T*: T calls nothing that maps code through the loader.
//! - *A mapping goes away, and another is made at its place*: the record of the second, or the notice of
//!   `dlclose`, makes T look. The maps show what is there, and sites that do not hold this engine's patch are
//!   dropped before anything is written. A write always compares first. Stated, not solved: in the
//!   microseconds between the comparison and the write, another thread may put other memory there, which
//!   then gets our bytes. User space has no write that the kernel makes only if a mapping is still the same.
//! - *A miss*: the address was mapped before it was asked for, and the maps are read after T3, so the look
//!   that it asks for finds the mapping. That question itself is answered by "not known", and the next one by
//!   what the look found: no thread waits.
//! - *A trap at which nothing is registered*: no look could explain it. Code that is mapped anew has the
//!   file's own bytes; patches are only where they were written, and hits know those places.
//! - *A mapping goes away and nothing takes its place*: no code runs there. Regions keep it until the next
//!   look.
//!
//! # Guarantees
//!
//! - When `dlopen` returns (glibc, musl; by records or calls), the sites of registrations in what it loaded
//!   are armed. They are also armed before constructors run. The exception is a wait that ended at
//!   [`PATIENCE`]; `impatient` counts that.
//! - Other ways to map: the kernel's own probes are armed before `mmap` returns. Here T is woken by then, and
//!   arms some 100 µs later. The longest time that this took, from record to patch, is [`Noticed::longest`].
//!   Hits before that are not seen.
//! - Without records, raw calls are seen only by the next look (a miss leads to one), and counted in
//!   `by_look`.
//!
//! # Forks
//!
//! A child has neither T nor records; its rings are the parent's, and it releases them. It begins anew with
//! its next call of [`register_all`](super::register_all) or [`rescan`](super::rescan). Until then, the
//! loader's notice makes the thread that loads look by itself, if no thread holds the lock.

mod calls;
mod look;
mod misses;
mod thread;

use std::collections::HashSet;
use std::time::Duration;

use trapline_plan::Tactic;
use trapline_record::{FileId, RemoteAddr};
use trapline_tracee::perf::{MappingRecord, MappingRings, monotonic_ns};

use super::arch::LISTENS_BY_TRAPS;
use super::mapped_files::Changed;
use super::site_request::Load;
use super::speculate::SpeculativeTask;
use super::state::{Key, State};
use super::{Error, Request};
use calls::Of;
pub(super) use thread::{missed, with_signals_blocked, with_signals_held};

/// How this process notices what it maps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum NoticeMode {
    /// By the kernel's records and the loader's notice. If records are refused: as [`NoticeMode::Calls`].
    #[default]
    Records,
    /// By the loader's notice and probes on libc's calls.
    Calls,
    /// Only by [`rescan`](super::rescan): no thread is made, and nothing of libc's is patched.
    Asked,
}

/// What was noticed, and how. The mapping counts cover only mappings to which an earlier registration
/// applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Noticed {
    /// Way in use; `None` before the first registration.
    pub way: Option<NoticeMode>,
    /// Whether records come from every thread. Those of threads that began while the process was being
    /// followed may be missing.
    pub complete: bool,
    /// Whether the loader's notice is probed.
    pub notice: bool,
    /// Whether handlers that libc's `sigaction` sets are known at once.
    pub handlers: bool,
    /// Mappings of which a record told.
    pub by_record: u64,
    /// Mappings of which a call told, and no record.
    pub by_call: u64,
    /// Mappings that only a look found.
    pub by_look: u64,
    /// Records that the kernel dropped; each time, a look at everything followed.
    pub lost: u64,
    /// Looks that failed, and mappings for which the tables had no room.
    pub failed: u64,
    /// Waits of the loader that ended at the time limit.
    pub impatient: u64,
    /// Questions ([`code_at`](super::code_at)) for an address at which no file's code was known.
    pub misses: u64,
    /// Longest time from a record to the end of the look that it led to.
    pub longest: Duration,
}

/// File id that stands for anonymous memory.
const NO_FILE: FileId = FileId { dev: 0, inode: 0 };

/// How long the loader waits at most.
const PATIENCE: Duration = Duration::from_millis(100);

/// State of noticing.
#[derive(Debug, Default)]
pub(super) struct Noticing {
    mode: NoticeMode,
    /// Process to which the thread belongs; 0 before there is one.
    pid: u32,
    rings: Option<MappingRings>,
    /// The rings have records of data mappings too.
    reads_data: bool,
    /// Reported ranges that were not looked at yet.
    pending: Vec<Changed>,
    records: Vec<MappingRecord>,
    /// Records were dropped since the last look.
    lost: bool,
    /// A look is going on; `asked`: a call asked for it.
    looking: bool,
    asked: bool,
    tally: Noticed,
    /// Mappings at the last look, of files that were registered then.
    loads: HashSet<Load>,
    files: HashSet<FileId>,
    /// The engine's own consumers, each with the function that it probes.
    own: Vec<(Key, &'static str)>,
    /// They are registered, as far as that is possible.
    listens: bool,
    /// Number of all other consumers.
    users: usize,
}

impl Noticing {
    /// Sets the way, before anything is registered.
    pub(super) fn choose(&mut self, way: NoticeMode) -> Result<(), Error> {
        let began = self.pid == std::process::id();
        if began && self.mode != way {
            return Err(Error::NoticesAlready);
        }
        self.mode = way;
        Ok(())
    }
    /// T4: takes the records, before maps are read.
    pub(super) fn drain(&mut self) {
        let Some(rings) = self.rings.as_ref().filter(|_| self.pid == std::process::id()) else { return };
        let (records, pending, files) = (&mut self.records, &mut self.pending, &self.files);
        let lost = rings.drain(|one| {
            // Data matters where a semaphore may be in it.
            let may_have_semaphore = one.write && one.file.is_some_and(|file| files.contains(&file));
            if !one.exec && !may_have_semaphore {
                return;
            }
            pending.push(Changed { start: one.start, end: one.end, file: one.file.unwrap_or(NO_FILE) });
            records.push(one);
        });
        self.tally.lost += lost;
        self.lost |= lost > 0;
    }
    /// Switches records of data mappings on or off. Returns true if they are on from now, so that what was
    /// mapped before must be looked for.
    pub(super) fn read_data(&mut self, wanted: bool) -> bool {
        calls::read_data(wanted);
        if self.reads_data == wanted || self.rings.is_none() {
            return false;
        }
        // If no more events can be opened, the next look tries again.
        let Ok(rings) = MappingRings::open(wanted) else { return false };
        // The new rings record already; the last records of the old ones are taken too.
        self.drain();
        (self.rings, self.reads_data) = (Some(rings), wanted);
        thread::look_up();
        wanted
    }
    /// Takes the mappings of registered files that a look found. `files`: those that are registered now.
    pub(super) fn saw(&mut self, found: &[(Load, RemoteAddr)], files: &HashSet<FileId>) {
        let new =
            found.iter().filter(|(load, _)| !self.loads.contains(load) && self.files.contains(&load.file));
        for (_, at) in new {
            let was_recorded = self.records.iter().any(|one| one.exec && one.start <= *at && *at < one.end);
            let count = match (was_recorded, self.asked) {
                (true, _) => &mut self.tally.by_record,
                (false, true) => &mut self.tally.by_call,
                (false, false) => &mut self.tally.by_look,
            };
            *count += 1;
        }
        self.loads = found.iter().map(|(load, _)| *load).collect();
        self.files.clone_from(files);
    }
    /// All that is requested in these files was just patched where the maps show them, so earlier notices
    /// about them are dropped. Otherwise the thread that looks would find the same again, and keep the lock
    /// from the next caller.
    pub(super) fn knows(&mut self, files: &HashSet<FileId>) {
        self.pending.retain(|one| !files.contains(&one.file));
    }
    /// Whether a look is going on for which a thread in the loader may wait.
    pub(super) const fn is_looking(&self) -> bool {
        self.looking
    }
    /// Notes that a mapping turned out to be another one at the same place.
    pub(super) fn is_another(&mut self, load: &Load) {
        self.loads.remove(load);
    }
    /// Begins a look at everything: what was reported until now is in the maps that it reads. What is reported
    /// later stays for the next look.
    pub(super) fn look_begins(&mut self) {
        self.drain();
        self.pending.clear();
        self.lost = false;
    }
    /// Notes that a look is over. Records that it took out itself, and did not look at, stay in `pending`; the
    /// ring does not tell of them again, so the bell does.
    fn looked(&mut self) {
        let pending = &self.pending;
        let is_pending = |at| pending.iter().any(|one: &Changed| one.start <= at && at < one.end);
        let (stay, over): (Vec<_>, Vec<_>) = self.records.drain(..).partition(|one| is_pending(one.start));
        let ours = over.iter().filter(|one| one.file.is_some_and(|file| self.files.contains(&file)));
        if let Some(first) = ours.map(|one| one.time_ns).min() {
            let took = Duration::from_nanos(monotonic_ns().saturating_sub(first));
            self.tally.longest = self.tally.longest.max(took);
        }
        self.records = stay;
        if !self.pending.is_empty() || self.lost {
            thread::look_up();
        }
    }
}

impl State {
    /// Registers, and notices mappings from then on.
    pub(super) fn register_and_notice(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        match SpeculativeTask::of(self, &requests) {
            Some(ahead) => ahead.beside(self, |state| state.notice_and_register(requests)),
            None => self.notice_and_register(requests),
        }
    }
    fn notice_and_register(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        self.start_noticing();
        let result = self.register(requests);
        match &result {
            Ok(keys) => {
                self.noticing.users += keys.len();
                with_signals_held(|| self.know_code(keys));
            }
            Err(_) => {
                self.forget_requests();
                if self.noticing.users == 0 {
                    drop(self.unregister_and_notice(Vec::new()));
                }
            }
        }
        result
    }
    /// Unregisters; with the last consumer also those that the engine registered for itself.
    pub(super) fn unregister_and_notice(&mut self, mut keys: Vec<Key>) -> Result<(), Error> {
        self.noticing.users = self.noticing.users.saturating_sub(keys.len());
        if self.noticing.users == 0 {
            keys.extend(self.noticing.own.drain(..).map(|(key, _)| key));
            (self.noticing.tally.notice, self.noticing.tally.handlers) = (false, false);
            self.noticing.listens = false;
        }
        self.unregister(keys)
    }
    /// Looks at everything, because the user asked for it.
    pub(super) fn rescan_and_notice(&mut self) -> Result<usize, Error> {
        if self.noticing.users > 0 {
            self.start_noticing();
        }
        let found = self.rescan()?;
        self.noticing.looked();
        Ok(found)
    }
    pub(super) fn noticed(&self) -> Noticed {
        let failed = self.noticing.tally.failed + self.known.missed;
        Noticed { impatient: thread::impatient(), misses: thread::misses(), failed, ..self.noticing.tally }
    }
    /// Makes the thread, once for each process. All that it watches is watched before this returns.
    fn start_noticing(&mut self) {
        if self.noticing.pid != std::process::id() {
            self.begin();
        }
        if self.noticing.tally.way != Some(NoticeMode::Asked) && !self.noticing.listens {
            self.noticing.listens = true;
            self.listen();
        }
    }
    fn begin(&mut self) {
        let noticing = &mut self.noticing;
        if let Some(rings) = noticing.rings.take() {
            rings.leave();
        }
        (noticing.reads_data, noticing.listens) = (false, false);
        let mut way = noticing.mode;
        if way == NoticeMode::Records {
            noticing.rings = MappingRings::open(false).ok();
            noticing.tally.complete = noticing.rings.as_ref().is_some_and(|rings| rings.is_complete());
            if noticing.rings.is_none() {
                way = NoticeMode::Calls;
            }
        }
        noticing.pid = std::process::id();
        let reads_records = way != NoticeMode::Asked && thread::start();
        noticing.tally.way = Some(if reads_records { way } else { NoticeMode::Asked });
        if !reads_records {
            noticing.rings = None;
            (noticing.tally.notice, noticing.tally.handlers) = (false, false);
            let own = noticing.own.drain(..).map(|(key, _)| key).collect();
            drop(self.unregister(own));
        }
    }
    /// Registers the engine's own probes on calls. A call on which no jump fits is left out, since a thread
    /// that blocks signals may come there. Where there are no jumps, only the loader's notice is probed.
    fn listen(&mut self) {
        for call in calls::wanted(self.noticing.rings.is_none()) {
            if self.noticing.own.iter().any(|(_, of)| *of == call.function) {
                continue;
            }
            let Some((file, offset)) = self.find_call(call) else { continue };
            let Ok(keys) = self.register(vec![Request::new(file, offset, call.consumer())]) else { continue };
            let by_jumps =
                keys.iter().all(|&key| self.tactics(key).iter().all(|&tactic| tactic < Tactic::Trap));
            if by_jumps || LISTENS_BY_TRAPS {
                self.noticing.tally.notice |= call.reports == Of::Libraries;
                self.noticing.tally.handlers |= call.reports == Of::Handlers;
                self.noticing.own.extend(keys.into_iter().map(|key| (key, call.function)));
            } else {
                drop(self.unregister(keys));
            }
        }
    }
    fn find_call(&mut self, call: &calls::Call) -> Option<(std::path::PathBuf, u64)> {
        let find = |name: &&str| {
            self.looking(|process, files| super::find::find_in(process, files, name, call.function)).ok()
        };
        call.files.iter().find_map(find)
    }
    /// Descriptors that T1 polls.
    fn descriptors(&self) -> Vec<i32> {
        self.noticing.rings.as_ref().map(MappingRings::descriptors).unwrap_or_default()
    }
}
