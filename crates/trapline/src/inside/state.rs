//! The engine's slow side, behind one lock that no hit takes: probes, and how they follow what is mapped.
//!
//! In: requests of the program and of the thread that looks. Out: probes in place; the engine's own probes on
//! calls. Invariants: INS-7 it is reached under the engine's lock alone (`lock`). Does not: decide what is
//! patched (`probes`), or look by itself (`notice`).

use std::path::PathBuf;
use std::time::Duration;

use trapline_plan::Tactic;

use super::arch::LISTENS_BY_TRAPS;
use super::notice::calls::{self, Call, Of};
use super::notice::{Listening, Looker, NoticeMode, Noticed, thread};
use super::probes::Probes;
use super::registry::Key;
use super::system::with_signals_held;
use super::{Error, Request};

/// How often an unwinder that is being loaded is looked at.
const LOADING: Duration = Duration::from_millis(1);

/// State of the engine's slow side.
#[derive(Debug)]
pub(super) struct State {
    probes: Probes,
    listening: Listening,
    looker: Looker,
}

impl State {
    /// Nothing is registered yet. `looker`: how the thread that looks reaches this.
    pub(super) fn new(looker: Looker) -> Self {
        Self { probes: Probes::default(), listening: Listening::default(), looker }
    }
    pub(super) const fn probes(&self) -> &Probes {
        &self.probes
    }
    /// Registers, and notices mappings from then on.
    pub(super) fn register(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        let Some(task) = self.probes.speculative_task(&requests) else {
            return self.notice_and_register(requests);
        };
        task.beside(|speculative| {
            self.probes.expect(speculative);
            let done = self.notice_and_register(requests);
            self.probes.expect(None);
            done
        })
    }
    fn notice_and_register(&mut self, requests: Vec<Request>) -> Result<Vec<Key>, Error> {
        self.start_noticing();
        let result = self.probes.register(requests);
        match &result {
            Ok(keys) => {
                self.listening.add_users(keys.len());
                with_signals_held(|| self.probes.know_code(keys));
            }
            Err(_) => {
                self.probes.forget_requests();
                if !self.listening.has_users() {
                    drop(self.unregister(Vec::new()));
                }
            }
        }
        result
    }
    /// Unregisters; with the last consumer also those that the engine registered for itself.
    pub(super) fn unregister(&mut self, mut keys: Vec<Key>) -> Result<(), Error> {
        keys.extend(self.listening.remove_users(keys.len()));
        self.probes.unregister(&keys)
    }
    /// Looks at everything, because the user asked for it.
    pub(super) fn rescan(&mut self) -> Result<usize, Error> {
        if self.listening.has_users() {
            self.start_noticing();
        }
        self.probes.rescan()
    }
    /// Finds a function among what is mapped.
    pub(super) fn find(&mut self, file: &str, function: &str) -> Result<(PathBuf, u64), Error> {
        self.probes.find(file, function)
    }
    /// Chooses how mappings are noticed, before anything is registered.
    pub(super) fn notice_by(&mut self, way: NoticeMode) -> Result<(), Error> {
        let begun = self.probes.notices().have_begun();
        self.listening.choose(way, begun)
    }
    pub(super) fn noticed(&self) -> Noticed {
        let tally = self.listening.complete(self.probes.tally());
        Noticed { impatient: thread::impatient(), misses: thread::misses(), ..tally }
    }
    /// What T1 waits for: descriptors, and how long at most.
    pub(super) fn waits(&mut self) -> (Vec<i32>, Option<Duration>) {
        (self.probes.notices().descriptors(), self.probes.is_unwinder_loading().then_some(LOADING))
    }
    /// T4 and T5. Returns whether there was anything to be found.
    pub(super) fn look(&mut self, asked: bool, missed: bool) -> bool {
        self.probes.look(asked, missed)
    }
    /// Makes the thread, once for each process. All that it watches is watched before this returns.
    fn start_noticing(&mut self) {
        if !self.probes.notices().have_begun() {
            self.begin();
        }
        if self.listening.begins_to_listen() {
            self.listen();
        }
    }
    fn begin(&mut self) {
        self.listening.begin();
        let mut way = self.listening.mode();
        let records = self.probes.notices().begin(way == NoticeMode::Records);
        if way == NoticeMode::Records {
            self.listening.set_complete(records.unwrap_or(false));
            if records.is_none() {
                way = NoticeMode::Calls;
            }
        }
        let is_thread = way != NoticeMode::Asked && thread::start(self.looker);
        self.listening.set_way(if is_thread { way } else { NoticeMode::Asked });
        if !is_thread {
            self.probes.notices().close();
            let own = self.listening.end();
            drop(self.probes.unregister(&own));
        }
    }
    /// Registers the engine's own probes on calls. A call on which no jump fits is left out, since a thread
    /// that blocks signals may come there. Where there are no jumps, only the loader's notice is probed.
    fn listen(&mut self) {
        for call in calls::wanted(!self.probes.notices().have_records()) {
            if self.listening.has(call.function) {
                continue;
            }
            let Some((file, offset)) = self.find_call(call) else { continue };
            let request = Request::new(file, offset, call.consumer());
            let Ok(keys) = self.probes.register(vec![request]) else { continue };
            let is_jump = |&key: &Key| self.probes.tactics(key).iter().all(|&tactic| tactic < Tactic::Trap);
            if LISTENS_BY_TRAPS || keys.iter().all(is_jump) {
                let of = (call.reports == Of::Libraries, call.reports == Of::Handlers);
                self.listening.add(keys, call.function, of);
            } else {
                drop(self.probes.unregister(&keys));
            }
        }
    }
    fn find_call(&mut self, call: &Call) -> Option<(PathBuf, u64)> {
        call.files.iter().find_map(|file| self.find(file, call.function).ok())
    }
}
