//! Following processes through fork and exec.
//!
//! Input: processes to follow. Output: a [`Followed`] for each birth, exec and end. Invariants: TGT-10 a
//! process that executes a program is handed over parked at that program's entry point. No thread traces it
//! there, and it comes back by [`Follower::resume`]. TGT-11 when following ends, no process is left with a
//! breakpoint of ours. One thread
//! does all the tracing ([`tracer`]). It takes each stop and lets the tracee go on at once, signals included.
//! Does not: stop a process by itself, but to let go of it ([`release`]).

mod release;
mod tracer;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use self::tracer::{Tracer, why_unparked};
use crate::living::until_gone;
use crate::park::Parked;
use crate::process::{AtExec, Process};
use crate::sys::ptrace;

/// What happened to a followed process.
#[derive(Debug, PartialEq, Eq)]
pub enum Followed {
    /// A process was born.
    Born {
        /// The process that forked.
        parent: u32,
        /// The child's pid.
        child: u32,
    },
    /// It executed another program and is parked at its entry point.
    AtEntry(Parked),
    /// It was parked, and ran on before it was resumed.
    Strayed {
        /// Its pid.
        pid: u32,
    },
    /// It executed another program and runs it, because it could not be held at the entry point.
    Unparked {
        /// Its pid.
        pid: u32,
        /// Why it could not be held.
        why: String,
    },
    /// It ended.
    Exited {
        /// Its pid.
        pid: u32,
    },
}

enum Order {
    Follow(u32),
    Resume(Parked),
    Release(Process),
    Again(Again),
    Stop,
}

/// A process that was let go, and is to be followed again.
#[derive(Debug)]
pub struct Again {
    /// The process, opened while it was followed.
    pub process: Process,
    /// Processes that are followed, or will be, without this order.
    pub known: BTreeSet<u32>,
}

/// Programs that batches have parked, for the one who follows. Clones share them.
#[derive(Clone, Default, Debug)]
pub struct Handover(Arc<Mutex<Vec<Followed>>>);

impl Handover {
    /// Takes what was handed over since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<Followed> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// For [`Process::with_exec`]: parks what is executed.
    #[must_use]
    pub fn at_exec(&self) -> AtExec {
        let handover = self.clone();
        AtExec(Arc::new(move |pid| handover.park(pid)))
    }
    /// Parks a program that stands in the stop of its exec, held by the calling thread. One that ends before needs
    /// nothing; one that cannot be held runs on.
    fn park(&self, pid: u32) {
        let event = match Parked::from_exec(pid, &|| true) {
            Ok(Some(parked)) => Followed::AtEntry(parked),
            Ok(None) => return,
            Err(error) => {
                drop(ptrace::cont(pid, 0));
                Followed::Unparked { pid, why: why_unparked(pid, &error) }
            }
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

/// A thread that follows processes.
#[derive(Debug)]
pub struct Follower {
    orders: Sender<Order>,
    events: Receiver<Followed>,
    answers: Receiver<io::Result<()>>,
    /// The thread that traces. It returns its entry in /proc, and the processes that it followed.
    thread: Option<JoinHandle<(io::Result<PathBuf>, Vec<u32>)>>,
}

impl Follower {
    /// Starts the thread. `child` is a process of our own. Its end is not reaped here but left for its
    /// parent.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(child: Option<u32>) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let (outbox, events) = channel();
        let (answer, answers) = channel();
        let work = move || {
            let tracer = Tracer::new(inbox, outbox, answer, child);
            (std::fs::read_link("/proc/thread-self"), tracer.run())
        };
        let thread = std::thread::Builder::new().name("trapline-follow".into()).spawn(work)?;
        Ok(Self { orders, events, answers, thread: Some(thread) })
    }
    fn order(&self, order: Order) -> io::Result<()> {
        let dead = || io::Error::other("the following thread has ended");
        self.orders.send(order).map_err(|_| dead())?;
        self.answers.recv().map_err(|_| dead())?
    }
    /// Follows a running process.
    ///
    /// # Errors
    /// When it cannot be seized.
    pub fn follow(&self, pid: u32) -> io::Result<()> {
        self.order(Order::Follow(pid))
    }
    /// Lets a parked process run its program, followed.
    ///
    /// # Errors
    /// When it is gone.
    pub fn resume(&self, parked: Parked) -> io::Result<()> {
        self.order(Order::Resume(parked))
    }
    /// Lets go of one process, so that a batch can seize it. The others are followed on, its forked children
    /// too. Its threads are stopped for moments.
    ///
    /// # Errors
    /// When it executes another program, or a thread does not stop in time. Part of it may be let go then.
    pub fn release(&self, process: Process) -> io::Result<()> {
        self.order(Order::Release(process))
    }
    /// Follows a process again that was let go. Its children that were born meanwhile are followed too. A
    /// program that the process or such a child executed meanwhile is reported as [`Followed::Unparked`].
    ///
    /// # Errors
    /// When it cannot be seized.
    pub fn again(&self, again: Again) -> io::Result<()> {
        self.order(Order::Again(again))
    }
    /// What happened since the last call.
    #[must_use]
    pub fn events(&self) -> Vec<Followed> {
        self.events.try_iter().collect()
    }
    /// Ends following. Returns the processes that were followed, once the kernel has detached from them, and
    /// the remaining [`Self::events`]. A process that is parked stays parked.
    #[must_use]
    pub fn stop(mut self) -> (Vec<u32>, Vec<Followed>) {
        let pids = self.end();
        (pids, self.events())
    }
    fn end(&mut self) -> Vec<u32> {
        // If the thread has ended already, the order goes nowhere.
        drop(self.orders.send(Order::Stop));
        let Some((own, pids)) = self.thread.take().and_then(|thread| thread.join().ok()) else {
            return Vec::new();
        };
        if let Ok(own) = own {
            until_gone(&Path::new("/proc").join(own));
        }
        pids
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.end();
        for event in self.events.try_iter() {
            if let Followed::AtEntry(parked) = event {
                // It is gone if it cannot be released.
                drop(parked.release());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Followed, Follower};
    use crate::launch::Launched;
    use std::collections::HashMap;
    use std::process::Command;
    use std::time::{Duration, Instant};

    #[test]
    fn a_chain_of_programs_is_followed_and_ends_as_it_would() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "/bin/true; /bin/false; (exec /bin/sleep 0.01); exit 5"]);
        let (mut launched, parked) = Launched::start(command).expect("sh starts");
        let parked = parked.expect("it gets to its entry point");
        let follower = Follower::start(Some(launched.pid())).expect("a thread");
        follower.resume(parked).expect("it can be let go");
        let mut names = HashMap::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        let status = loop {
            for event in follower.events() {
                if let Followed::AtEntry(parked) = event {
                    let exe =
                        std::fs::read_link(format!("/proc/{}/exe", parked.pid())).expect("it is parked");
                    *names
                        .entry(exe.file_name().expect("a name").to_string_lossy().into_owned())
                        .or_insert(0) += 1;
                    follower.resume(parked).expect("it can be let go");
                }
            }
            if let Some(status) = launched.try_wait().expect("ours") {
                break status;
            }
            assert!(Instant::now() < deadline, "it hangs; seen {names:?}");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(status.code(), Some(5), "{status}; seen {names:?}");
        assert_eq!((names["true"], names["false"], names["sleep"]), (1, 1, 1));
    }
}
