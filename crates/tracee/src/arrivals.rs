//! Programs and libraries of later: each process that is about to map a wanted file is held before it runs any of
//! it.
//!
//! In: files, by path. Out: processes, each parked where its loader has mapped and relocated all ([`Parked`]); and
//! those that could not be held. Invariants: ARR-1 whoever opens a marked file is let go at most [`HELD`] after it
//! was seen, whatever becomes of the rest. ARR-2 this process and pid 1 are never held. ARR-3 no opening is denied. Does not: choose the files,
//! patch, or follow a process on.
//!
//! Root alone may ask for this (fanotify needs CAP_SYS_ADMIN). Marks are on inodes: names and mount namespaces do
//! not matter, and whoever opens other files pays nothing. The trial is `fanotify_rendezvous.c` of the experiments.
//!
//! | step | by | what |
//! |---|---|---|
//! | O1 | a thread X | opens the library, or is in `execve` of the program; the kernel lets it wait |
//! | O2 | A, the thread that reads events | starts W, a thread for this one event |
//! | O3 | W | for a program: seizes X. For a library: sets an ambush ([`ambush`](crate::ambush)); nobody is traced |
//! | O4 | A | lets X go on, when W has done O3 or has failed, or [`HELD`] is over |
//! | O5 | X | comes to the stop of its exec; W sets the same ambush, and detaches |
//! | O6 | X | comes to the rendezvous, and waits there; W hands it over, and ends |
//!
//! Interleavings:
//!
//! - *The tracer dies*: before O4 the kernel lets X go, since the group is closed; after O3 it detaches. After O6 a
//!   parked program goes on by itself ([`park`](crate::park)).
//! - *X holds the mutex that a seizure needs* (`cred_guard_mutex`): it executes a script whose interpreter is the
//!   wanted program. Then W would wait for X, and X for A. It is found by the path that X executes, which does not
//!   lead to this file. A lets X go at once. X gives the mutex back before the program's first instruction. W has
//!   it then, and asks X to stop: at its exec stop, or in the loader.
//! - *W gets no CPU for so long that O4 comes by time*: the same. If X is past its rendezvous by then, it is reported
//!   as late.
//! - *The exec fails, or the file was opened by a program that only reads it*: W sees no stop for [`PATIENCE`], and
//!   ends, by which the kernel detaches. A library that is opened by code outside of the loader is not waited for.
//! - *The tracer is stopped*: then all who open a wanted file would wait, so the terminal's stop (Ctrl-Z) is blocked.
//!   A SIGSTOP, or a debugger that stops us, lets them wait until we go on. Stated, not solved.
//! - *The tracer has no descriptors left*: the kernel would deny what X opens, since it opens a descriptor for each
//!   event. So some are kept for that (ARR-3). Without them no event is read, and the group is closed.
//! - *X is traced*: by a debugger: it is reported as not held. By a thread of ours (W of its exec, the follower):
//!   that one has it already.
//! - *X belongs to a process that is patched already*: it is let go; the session sees what it loads.
//! - *X is another thread than the main one* and loads a library: only a program's main thread can be parked. The
//!   process is reported as running, and probed as such; calls until then are missed, and told.
//! - *Another thread of X's process executes or ends meanwhile*: the stops of X tell W.
//! - *X forks between O3 and O6*: the child is not held. The loader forks nothing.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::ambush::Ambush;
use crate::among::Among;
use crate::bell::Bell;
use crate::living;
use crate::opener::{executed_file, is_loading};
use crate::park::Parked;
use crate::procfs;
use crate::rendezvous;
use crate::status::ThreadStatus;
use crate::sys::fanotify::{Group, Opening};
use crate::sys::limit;
use crate::sys::ptrace::{self, EVENT_STOP};
use crate::sys::signals;
use crate::sys::wait::{self, Stop, pause};

/// Longest time for which a thread that opens a file waits for us. It takes some hundred microseconds where we get
/// a CPU.
const HELD: Duration = Duration::from_millis(200);
/// Descriptors that this process may have open.
const DESCRIPTORS: u64 = 1 << 16;
/// Time that a process may take from its opening to the rendezvous.
const PATIENCE: Duration = Duration::from_secs(2);

/// What became of a process that opened a wanted file.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is parked; to be let go by [`Parked::release`].
    Parked(Parked),
    /// It runs on, and maps the file or is about to.
    Running {
        /// Its pid.
        pid: u32,
        /// It has come so far that calls may have been missed.
        late: bool,
    },
    /// No process of later is held any more, since this process has no descriptors left.
    Ended,
    /// It could not be held.
    Missed {
        /// Its pid.
        pid: u32,
        /// Why not.
        why: String,
    },
}

/// Waits for processes that open wanted files.
#[derive(Debug)]
pub struct Arrivals {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads share.
#[derive(Debug)]
struct Shared {
    /// Closed when the last holder lets go: A, and this.
    group: Mutex<Option<Arc<Group>>>,
    /// Ends A.
    end: Bell,
    ended: AtomicBool,
    /// Processes that are wanted.
    among: Among,
    arrived: Mutex<Vec<Arrival>>,
    /// Rings for each arrival.
    news: Bell,
}

impl Arrivals {
    /// Starts without files, for these processes. From now on the calling thread, and those it starts, are not stopped by Ctrl-Z.
    ///
    /// # Errors
    /// When the kernel grants no permission events: without CAP_SYS_ADMIN, or without support.
    pub fn start(among: Among) -> io::Result<Self> {
        // Each process under trace takes some. Without the right to raise the limit, the reserve protects others.
        drop(limit::raise(DESCRIPTORS));
        let group = Arc::new(Group::new()?);
        signals::block_stop();
        let (end, news) = (Bell::new()?, Bell::new()?);
        let shared = Arc::new(Shared {
            group: Mutex::new(Some(Arc::clone(&group))),
            end,
            ended: AtomicBool::new(false),
            among,
            arrived: Mutex::default(),
            news,
        });
        let of_thread = Arc::clone(&shared);
        let work = move || attend(&of_thread, &group);
        let thread = std::thread::Builder::new().name("trapline-arrivals".into()).spawn(work)?;
        Ok(Self { shared, thread: Some(thread) })
    }
    /// Waits for the file that a path leads to. `executes`: it is a program.
    ///
    /// # Errors
    /// When it cannot be marked: it is not there, or its file system has no such events.
    pub fn want(&self, path: &Path, executes: bool) -> io::Result<()> {
        let group = self.shared.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))?.mark(path, executes)
    }
    /// Who has arrived since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Arrival> {
        self.shared.news.clear();
        std::mem::take(&mut self.shared.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// A descriptor that is readable when somebody has arrived.
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.shared.news.descriptor()
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.end.ring();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
        for arrival in self.take() {
            if let Arrival::Parked(parked) = arrival {
                // It is gone if it cannot be released.
                drop(parked.release());
            }
        }
    }
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }
    fn report(&self, arrival: Arrival) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        self.news.ring();
    }
    /// Ends it for lack of descriptors. The group is closed when A returns, which lets all go.
    fn give_up(&self) {
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.report(Arrival::Ended);
    }
    fn missed(&self, pid: u32, why: String) {
        self.report(Arrival::Missed { pid, why });
    }
}

/// A: answers events until the end. Returns when no thread of ours holds anybody.
fn attend(shared: &Arc<Shared>, group: &Arc<Group>) {
    let mut workers: Vec<JoinHandle<()>> = Vec::new();
    while shared.goes_on() {
        if !group.keep_reserve() {
            // Whoever waits goes on when the group is gone.
            shared.give_up();
            break;
        }
        shared.end.wait(&[group.descriptor()], None);
        for opening in group.openings() {
            workers.extend(hold(shared, &opening));
        }
        workers.retain(|worker| !worker.is_finished());
    }
    // Threads that open a file now wait until the group is gone, which is soon.
    for worker in workers {
        drop(worker.join());
    }
}

/// O2 and O4: holds a thread that opens a file, which goes on when `opening` is dropped.
fn hold(shared: &Arc<Shared>, opening: &Opening) -> Option<JoinHandle<()>> {
    let (tid, executes) = (opening.tid, opening.executes);
    let status = match procfs::read(format!("/proc/{tid}/status")) {
        Ok(status) => ThreadStatus::parse(&status),
        // Killed while it waited.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => return None,
        Err(error) => {
            shared.missed(tid, format!("it cannot be read: {error}"));
            return None;
        }
    };
    let is_ours = status.tgid == std::process::id() || is_of_ours(status.tracer);
    if is_ours || status.tgid <= 1 || !shared.among.has(status.tgid) {
        return None;
    }
    if !executes && !is_loading(status.tgid, tid) {
        return None;
    }
    if !executes && tid != status.tgid {
        shared.report(Arrival::Running { pid: status.tgid, late: true });
        return None;
    }
    let waits = !executes || opening.file_id().is_some_and(|file| executed_file(tid) == Some(file));
    let (seized, done) = channel();
    let (of_thread, go) = (Arc::clone(shared), Arc::new(AtomicBool::new(!waits)));
    let waiter = Waiter { shared: of_thread, pid: status.tgid, went: Arc::clone(&go) };
    let work = move || waiter.run(tid, executes, &seized);
    let worker = std::thread::Builder::new().name("trapline-arrival".into()).spawn(work);
    // The sender goes with the thread, whatever that has come to.
    let held = done.recv_timeout(HELD);
    go.fetch_or(held == Err(RecvTimeoutError::Timeout), Ordering::AcqRel);
    worker.map_err(|error| shared.missed(status.tgid, format!("no thread could be started: {error}"))).ok()
}

/// Whether a thread of this process is the tracer.
fn is_of_ours(tracer: u32) -> bool {
    tracer != 0 && Path::new("/proc/self/task").join(tracer.to_string()).exists()
}

/// W: waits for one process.
struct Waiter {
    shared: Arc<Shared>,
    pid: u32,
    /// It went on before it was known to be seized.
    went: Arc<AtomicBool>,
}

impl Waiter {
    fn run(&self, tid: u32, executes: bool, seized: &Sender<()>) {
        if !executes {
            return self.at_library(seized);
        }
        if self.went.load(Ordering::Acquire) {
            // It must go on before the seizure can end.
            _ = seized.send(());
        }
        if let Err(error) = ptrace::seize_for_exec(tid) {
            let lives = living::runs(self.pid);
            let why =
                if lives { format!("it cannot be held: {error}") } else { "it ended at once".to_owned() };
            self.shared.missed(self.pid, why);
            return;
        }
        match self.at_exec(tid, seized) {
            Ok(Some(parked)) => self.shared.report(Arrival::Parked(parked)),
            Ok(None) => {}
            Err(error) if living::runs(self.pid) => {
                self.shared.missed(self.pid, format!("it could not be held at its start: {error}"));
            }
            Err(_) => {}
        }
    }
    /// O5 and O6 for a program.
    fn at_exec(&self, tid: u32, seized: &Sender<()>) -> io::Result<Option<Parked>> {
        _ = seized.send(());
        let start = Instant::now();
        let mut asked = false;
        while self.goes_on(start) {
            if self.went.load(Ordering::Acquire) && !std::mem::replace(&mut asked, true) {
                // It may have passed its exec stop by now.
                ptrace::unless_killed(ptrace::interrupt(tid))?;
            }
            let Some(stop) = self.next(start)? else { continue };
            match stop {
                Stop::Exit { .. } => return Ok(None),
                Stop::Event { event: libc::PTRACE_EVENT_EXEC, .. } => return self.park(start),
                Stop::Event { event: EVENT_STOP, signal: libc::SIGTRAP, .. } if asked => {
                    if !rendezvous::is_passed(self.pid) {
                        return self.park(start);
                    }
                    ptrace::cont(stop.tid(), 0)?;
                    self.shared.report(Arrival::Running { pid: self.pid, late: true });
                    return Ok(None);
                }
                stop => send_on(stop)?,
            }
        }
        Ok(None)
    }
    /// O6 for a program that has executed. One that does not come to its rendezvous in time runs on, and is told.
    fn park(&self, start: Instant) -> io::Result<Option<Parked>> {
        let parked = Parked::from_exec(self.pid, &|| self.goes_on(start))?;
        if parked.is_none() && self.shared.goes_on() && living::runs(self.pid) {
            self.shared.report(Arrival::Running { pid: self.pid, late: true });
        }
        Ok(parked)
    }
    /// O3 and O6 for a library.
    fn at_library(&self, seized: &Sender<()>) {
        let Some(ambush) = Ambush::at_load(self.pid) else {
            self.shared.report(Arrival::Running { pid: self.pid, late: true });
            return;
        };
        _ = seized.send(());
        let start = Instant::now();
        if let Ok(Some(arrived)) = ambush.wait(&|| self.goes_on(start)) {
            self.shared.report(Arrival::Parked(Parked::in_ambush(arrived)));
        }
    }
    fn goes_on(&self, start: Instant) -> bool {
        self.shared.goes_on() && start.elapsed() < PATIENCE
    }
    /// The next stop of the only tracee, taken, but for an end: that is its parent's to take.
    fn next(&self, start: Instant) -> io::Result<Option<Stop>> {
        let stop = wait::peek_any()?;
        match stop {
            None => pause(start.elapsed()),
            Some(Stop::Exit { .. }) => {}
            Some(stop) => drop(wait::take(stop.tid())?),
        }
        Ok(stop)
    }
}

/// Lets a thread go on from a stop that means nothing here.
fn send_on(stop: Stop) -> io::Result<()> {
    let tid = stop.tid();
    match stop {
        Stop::Signal { signal, .. } => ptrace::cont(tid, signal),
        Stop::Event { event: EVENT_STOP, signal, .. } if signal != libc::SIGTRAP => ptrace::listen(tid),
        _ => ptrace::cont(tid, 0),
    }
}
