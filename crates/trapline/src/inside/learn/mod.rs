//! How this process learns of what it maps, so that a registration takes hold of a file that is mapped later.
//!
//! In: the kernel's records of our own mappings; libc's calls, probed by ourselves; the user's [`rescan`](super::rescan). Out: looks at the
//! maps, and what every look found, counted by who told of it ([`Learnt`]). Invariants: LRN-1 whoever tells, the maps are read after it was
//! told, and what is believed is what they say; LRN-2 no thread waits without an end for the one that looks; LRN-3 what only a look found,
//! what the kernel dropped and what was armed late is counted.
//! Does not: patch (`state`, `place`), or answer hits.
//!
//! # Who tells
//!
//! | way | sees | does not see |
//! |---|---|---|
//! | records: a dummy perf event on every CPU, inherited by threads | every `mmap` of code and every `mprotect` that makes code, by whatever call: libc's, ld.so's, musl's, Go's, a raw one | unmapping, `mremap` |
//! | the loader's own notice (`_dl_debug_state`, which exists for debuggers; both libcs call it), probed | `dlopen`, `dlclose`, in the moment between mapping and constructors | raw calls |
//! | calls: libc's `mmap`, `mprotect`, `mremap`, probed; only where there are no records | programs that load code by themselves, through libc | raw calls |
//! | a look, because somebody asked for it | everything | when |
//! | a miss: somebody asks what lies at an address ([`code_at`](super::code_at)), and no file's code is known there | everything | when; and what nobody asks for |
//!
//! The loader's notice is probed beside records too, since it comes at a moment when the thread that maps can wait (below).
//!
//! # Who looks
//!
//! One thread of the engine's, made at the first registration, which does nothing else. Nobody is told off a hit: a handler neither locks nor
//! waits. The probes on calls move the instruction pointer to a function of ours, which runs when the hit is over.
//!
//! The thread blocks all signals that are sent, and none that an instruction raises: it runs patched code like any other, and SIGTRAP must find it.
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
//! | T5 | if there were any, or somebody or a miss asked: read the maps, patch what changed | |
//! | T6 | `done` := what T3 loaded; wake askers | |
//!
//! ## Interleavings
//!
//! - *A1 before T3*: the maps are read (T5) after it, so they have what A had mapped; T6 lets A go on.
//! - *A1 after T3*: A2 is after T2, so T1 of the next round returns at once.
//! - *A between A1 and A2 at T3*: served in this round; the bell rings for nothing, once.
//! - *a mapping is made, and its record written, before T4*: taken there; the maps of T5 are younger. *After T4*: the record stays, and has the ring
//!   readable for the next T1. The mapping may be in T5's maps already: then that look counts it as found by nobody's word, or by the call
//!   that asked, and the next finds nothing new.
//! - *another thread holds the lock* (it registers): T waits at T4. That thread takes the records out itself before it reads the maps, and leaves
//!   those of other files for T: they are in `pending`, which T looks at as if it had taken them out.
//! - *A holds something that T, or whoever holds the lock, needs*: A is in the loader and holds the loader's lock. The engine takes
//!   none of the loader's, but what it calls may: a consumer's destructor, an allocator with thread-local storage of a library. Hence
//!   [`PATIENCE`]: A goes on, and what was armed behind it counts as late (`Learnt::impatient`).
//!   So that it seldom comes to that, a look makes no threads (a new one takes the loader's lock, for its destructors): what of a file's code
//!   must be known is found out when it is registered, and in a look by T alone. Neither does who registers in a library's constructor (`loader`); T, if
//!   it is made there, begins when the loader is done.
//! - *A is the holder itself* (a destructor that calls `dlclose`): as above.
//! - *A is T*: T calls nothing that maps code through the loader.
//! - *a mapping goes away, and another is made at its place*: the second one's record, or the notice of `dlclose`, has T look; the maps say
//!   what is there, and sites that do not hold our bytes are let go of before anything is written. A write compares first, always.
//! - *a miss*: the address was mapped before it was asked for, and the maps are read behind T3, so the look that it asks for has it. The answer to that question is
//!   "not known", the next one's is what the look found: nobody waits.
//! - *a trap that is nobody's*: no look would find whose it is. Code that is mapped anew has the file's own bytes; our bytes are only where we wrote them, and of those
//!   places hits know.
//! - *a mapping goes away and nothing comes*: nobody runs code there. Regions keep it until the next look.
//!
//! # What is guaranteed
//!
//! - When `dlopen` returns (glibc, musl; by records or calls), the sites of registrations in what it loaded are armed; also before constructors run.
//!   Not when the wait ended for want of patience; then `impatient` says so.
//! - Other ways to map: the kernel's own probes are armed before `mmap` returns; here T is woken by then, and arms some 100 µs later. How long
//!   it took at most, from record to patch, is [`Learnt::longest`]. Hits before that are not seen.
//! - Without records, raw calls are seen by the next look only (a miss leads to one), and counted in `by_look`.
//!
//! # Forks
//!
//! A child has neither T nor records: its rings are the parent's and are let go of. It begins anew with its next call of [`register_all`](super::register_all)
//! or [`rescan`](super::rescan). Until then the loader's notice makes the thread that loads look by itself, if nobody holds the lock.

mod calls;
mod look;
mod misses;
mod thread;

use std::collections::HashSet;
use std::time::Duration;

use trapline_plan::Tactic;
use trapline_record::{FileId, RemoteAddr};
use trapline_target::perf::{MappingRings, Told, monotonic_ns};

use super::arch::LISTENS_BY_TRAPS;
use super::early::Ahead;
use super::known::Changed;
use super::place::Load;
use super::state::{Key, State};
use super::{Error, Request};
use calls::Of;
pub(super) use thread::{missed, with_signals_blocked, with_signals_held};

/// How this process learns of what it maps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Way {
    /// By the kernel's records, and the loader's notice. Where records are refused: as [`Way::Calls`].
    #[default]
    Records,
    /// By the loader's notice and probes on libc's calls.
    Calls,
    /// By [`rescan`](super::rescan) alone: no thread is made, nothing of libc's is patched.
    Asked,
}

/// What was learnt, and from whom. Mappings are counted that a registration of before took hold of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Learnt {
    /// The way in use; none before the first registration.
    pub way: Option<Way>,
    /// Whether records come from every thread. Those of threads that were born while others were being followed may be missing.
    pub complete: bool,
    /// The loader's notice is heard.
    pub notice: bool,
    /// Handlers that libc's `sigaction` sets are known at once.
    pub handlers: bool,
    /// Mappings that a record told of.
    pub by_record: u64,
    /// Mappings that a call told of, and no record.
    pub by_call: u64,
    /// Mappings that nobody told of: a look found them.
    pub by_look: u64,
    /// Records that the kernel dropped. A look at everything followed.
    pub lost: u64,
    /// Looks that failed, and mappings that there was no room to know of.
    pub failed: u64,
    /// Loaders that did not wait any longer.
    pub impatient: u64,
    /// Questions ([`code_at`](super::code_at)) for an address where no file's code was known.
    pub misses: u64,
    /// The longest time from a record to the end of the look that it led to.
    pub longest: Duration,
}

/// In place of anonymous memory's.
const NO_FILE: FileId = FileId { dev: 0, inode: 0 };

/// How long a loader waits.
const PATIENCE: Duration = Duration::from_millis(100);

/// What the engine knows of how it learns.
#[derive(Debug, Default)]
pub(super) struct Learning {
    wanted: Way,
    /// The process that the thread is of; 0 before there is one.
    pid: u32,
    rings: Option<MappingRings>,
    /// They tell of data too.
    hears_data: bool,
    /// Told of, and not looked at yet.
    pending: Vec<Changed>,
    told: Vec<Told>,
    /// Something was dropped since the last look.
    lost: bool,
    /// A look goes on, perhaps because a call asked.
    looking: bool,
    asked: bool,
    tally: Learnt,
    /// Mappings that were there at the last look, of files that were registered then.
    loads: HashSet<Load>,
    files: HashSet<FileId>,
    /// The engine's own consumers, each with the call that it is on.
    own: Vec<(Key, &'static str)>,
    /// They are there, as far as they can be.
    listens: bool,
    /// Everybody else's.
    users: usize,
}

impl Learning {
    /// To be chosen before anything is registered.
    pub(super) fn choose(&mut self, way: Way) -> Result<(), Error> {
        let began = self.pid == std::process::id();
        if began && self.wanted != way {
            return Err(Error::LearnsAlready);
        }
        self.wanted = way;
        Ok(())
    }
    /// T4: before maps are read.
    pub(super) fn drain(&mut self) {
        let Some(rings) = self.rings.as_ref().filter(|_| self.pid == std::process::id()) else { return };
        let (told, pending, files) = (&mut self.told, &mut self.pending, &self.files);
        let lost = rings.drain(|one| {
            // Data is of interest where a semaphore may be in it.
            let may_have_semaphore = one.write && one.file.is_some_and(|file| files.contains(&file));
            if !one.exec && !may_have_semaphore {
                return;
            }
            pending.push(Changed { start: one.start, end: one.end, file: one.file.unwrap_or(NO_FILE) });
            told.push(one);
        });
        self.tally.lost += lost;
        self.lost |= lost > 0;
    }
    /// Hears of data that is mapped, or no more. True: from now on, so that what was mapped before is to be looked for.
    pub(super) fn hear_data(&mut self, wanted: bool) -> bool {
        calls::hear_data(wanted);
        if self.hears_data == wanted || self.rings.is_none() {
            return false;
        }
        // Where there are no more events to be had, the next look tries again.
        let Ok(rings) = MappingRings::open(wanted) else { return false };
        // The new ones hear already; what the old ones heard last is not lost.
        self.drain();
        (self.rings, self.hears_data) = (Some(rings), wanted);
        thread::look_up();
        wanted
    }
    /// Our files' mappings, as a look found them. `files`: those that are registered now.
    pub(super) fn saw(&mut self, found: &[(Load, RemoteAddr)], files: &HashSet<FileId>) {
        let new =
            found.iter().filter(|(load, _)| !self.loads.contains(load) && self.files.contains(&load.file));
        for (_, at) in new {
            let was_told = self.told.iter().any(|one| one.exec && one.start <= *at && *at < one.end);
            let count = match (was_told, self.asked) {
                (true, _) => &mut self.tally.by_record,
                (false, true) => &mut self.tally.by_call,
                (false, false) => &mut self.tally.by_look,
            };
            *count += 1;
        }
        self.loads = found.iter().map(|(load, _)| *load).collect();
        self.files.clone_from(files);
    }
    /// All that is wanted of these files was just patched as the maps say that they lie: what was told of them before is done with. (Else
    /// the thread that looks would find the same out again, and keep the lock from whoever comes next.)
    pub(super) fn knows(&mut self, files: &HashSet<FileId>) {
        self.pending.retain(|one| !files.contains(&one.file));
    }
    /// Whether a look goes on that somebody in the loader may wait for.
    pub(super) const fn is_looking(&self) -> bool {
        self.looking
    }
    /// A mapping that turned out to be another one at the same place.
    pub(super) fn is_another(&mut self, load: &Load) {
        self.loads.remove(load);
    }
    /// Everything that was told of has been looked at.
    fn looked(&mut self) {
        let ours = self.told.drain(..).filter(|one| one.file.is_some_and(|file| self.files.contains(&file)));
        if let Some(first) = ours.map(|one| one.time_ns).min() {
            let took = Duration::from_nanos(monotonic_ns().saturating_sub(first));
            self.tally.longest = self.tally.longest.max(took);
        }
        self.pending.clear();
        self.lost = false;
    }
}

impl State {
    /// Registers, and from then on learns of what is mapped.
    pub(super) fn register_and_learn(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        match Ahead::of(self, &requests) {
            Some(ahead) => ahead.beside(self, |state| state.learn_and_register(requests)),
            None => self.learn_and_register(requests),
        }
    }
    fn learn_and_register(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        self.start_learning();
        let result = self.register(requests);
        match &result {
            Ok(keys) => {
                self.learning.users += keys.len();
                with_signals_held(|| self.know_code(keys));
            }
            Err(_) => {
                self.forget_wishes();
                if self.learning.users == 0 {
                    drop(self.unregister_and_learn(Vec::new()));
                }
            }
        }
        result
    }
    /// Unregisters; with the last one also what the engine has registered for itself.
    pub(super) fn unregister_and_learn(&mut self, mut keys: Vec<Key>) -> Result<(), Error> {
        self.learning.users = self.learning.users.saturating_sub(keys.len());
        if self.learning.users == 0 {
            keys.extend(self.learning.own.drain(..).map(|(key, _)| key));
            (self.learning.tally.notice, self.learning.tally.handlers) = (false, false);
            self.learning.listens = false;
        }
        self.unregister(keys)
    }
    /// A look at everything, because the user asked.
    pub(super) fn rescan_and_learn(&mut self) -> Result<usize, Error> {
        if self.learning.users > 0 {
            self.start_learning();
        }
        let found = self.rescan()?;
        self.learning.looked();
        Ok(found)
    }
    pub(super) fn learnt(&self) -> Learnt {
        let failed = self.learning.tally.failed + self.known.missed;
        Learnt { impatient: thread::impatient(), misses: thread::misses(), failed, ..self.learning.tally }
    }
    /// Makes the thread, once a process; what it hears of, it hears of before this returns.
    fn start_learning(&mut self) {
        if self.learning.pid != std::process::id() {
            self.begin();
        }
        if self.learning.tally.way != Some(Way::Asked) && !self.learning.listens {
            self.learning.listens = true;
            self.listen();
        }
    }
    fn begin(&mut self) {
        let learning = &mut self.learning;
        if let Some(rings) = learning.rings.take() {
            rings.leave();
        }
        (learning.hears_data, learning.listens) = (false, false);
        let mut way = learning.wanted;
        if way == Way::Records {
            learning.rings = MappingRings::open(false).ok();
            learning.tally.complete = learning.rings.as_ref().is_some_and(|rings| rings.is_complete());
            if learning.rings.is_none() {
                way = Way::Calls;
            }
        }
        learning.pid = std::process::id();
        let heard = way != Way::Asked && thread::start();
        learning.tally.way = Some(if heard { way } else { Way::Asked });
        if !heard {
            learning.rings = None;
            (learning.tally.notice, learning.tally.handlers) = (false, false);
            let own = learning.own.drain(..).map(|(key, _)| key).collect();
            drop(self.unregister(own));
        }
    }
    /// Puts the engine's own probes on calls. One that no jump fits is left out: a thread that blocks signals may come there. Where there are no jumps, the
    /// loader's notice alone is heard.
    fn listen(&mut self) {
        for call in calls::wanted(self.learning.rings.is_none()) {
            if self.learning.own.iter().any(|(_, of)| *of == call.function) {
                continue;
            }
            let Some((file, offset)) = self.find_call(call) else { continue };
            let Ok(keys) = self.register(vec![Request::new(file, offset, call.consumer())]) else { continue };
            let by_jumps =
                keys.iter().all(|&key| self.tactics(key).iter().all(|&tactic| tactic < Tactic::Trap));
            if by_jumps || LISTENS_BY_TRAPS {
                self.learning.tally.notice |= call.tells_of == Of::Libraries;
                self.learning.tally.handlers |= call.tells_of == Of::Handlers;
                self.learning.own.extend(keys.into_iter().map(|key| (key, call.function)));
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
    /// What T1 polls.
    fn descriptors(&self) -> Vec<i32> {
        self.learning.rings.as_ref().map(MappingRings::descriptors).unwrap_or_default()
    }
}
