//! Following processes through fork and exec.
//!
//! Input: processes to follow. Output: a [`Followed`] for each birth, exec and end. Invariants: TGT-10 a process that
//! executes a program is handed over parked at that program's start. No thread traces it there, and it comes back by
//! [`Follower::resume`]. TGT-11 when following ends, no process is left with a breakpoint of ours. TGT-17 a followed
//! process is traced without a gap until it ends, executes a program, or following ends. Does not: stop a process.
//!
//! One thread does all the tracing ([`tracer`]). It takes each stop and lets the tracee go on at once, signals
//! included. Only that thread can stop a followed process. So a batch in such a process runs *in that thread*:
//!
//! | step | by | what |
//! |---|---|---|
//! | B1 | caller | asks how the process stands; sends the batch, and waits ([`lend`](crate::sys::lend)) |
//! | B2 | thread | gives the process' threads to the batch; seizes those that are not traced yet |
//! | B3 | batch | answers the stops of these threads; at each round the thread serves all other processes |
//! | B4 | batch | births are followed; a program that is executed is held as ever; ends are reported |
//! | B5 | thread | takes all threads back, those of forked children too; lets run what is held |
//!
//! Interleavings:
//!
//! - *The process ends, or executes a program, between the answer of B1 and B2*: no thread of it is traced then, and
//!   the batch fails: the process is gone.
//! - *It is on its way to a program's start at B1*: the same.
//! - *A process is born at B3*: by a thread of the batch's: its first stop waits until the birth is answered, and it
//!   belongs to the batch from then on. By another process: it is followed as ever.
//! - *A program arrives at its start at B3*: it waits there, and is handed over at the next round.
//! - *A batch computes for long*: the stops of others wait so long. That is the price of one thread.
//! - *A batch in a process that is not followed* (a program that is parked): in a thread of its own.
//! - *A batch panics*: B5 is done all the same, and the panic goes on in the caller.
//! - *The tracer dies*: the kernel detaches from all.

mod tracer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use self::tracer::Tracer;
use crate::bell::Bell;
use crate::host::{FollowerThread, Request};
use crate::hurry::Hurry;
use crate::living::until_gone;
use crate::park::Parked;

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

#[derive(Debug)]
enum Order {
    Follow(u32),
    Resume(Parked),
    OfBatch(Request),
    Stop,
}

/// A thread that follows processes.
#[derive(Debug)]
pub struct Follower {
    orders: Sender<Order>,
    events: Receiver<Followed>,
    answers: Receiver<io::Result<()>>,
    news: Arc<Bell>,
    /// The thread that traces. It returns its entry in /proc.
    thread: Option<JoinHandle<io::Result<PathBuf>>>,
}

impl Follower {
    /// Starts the thread. The end of a child of our own is not reaped there, but left for its parent.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start() -> io::Result<Self> {
        let (orders, inbox) = channel();
        let (outbox, events) = channel();
        let (answer, answers) = channel();
        let news = Arc::new(Bell::new()?);
        let rung = Arc::clone(&news);
        let work = move || {
            Hurry::always();
            Tracer::new(inbox, (outbox, rung), answer).run();
            std::fs::read_link("/proc/thread-self")
        };
        let thread = std::thread::Builder::new().name("trapline-follow".into()).spawn(work)?;
        Ok(Self { orders, events, answers, news, thread: Some(thread) })
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
    /// The thread, for batches ([`Process::with_follower`](crate::Process::with_follower)).
    #[must_use]
    pub fn thread(&self) -> FollowerThread {
        let orders = self.orders.clone();
        FollowerThread::new(move |request| drop(orders.send(Order::OfBatch(request))))
    }
    /// A descriptor that is readable when a program waits to be probed ([`Followed::AtEntry`]).
    #[must_use]
    pub fn descriptor(&self) -> i32 {
        self.news.descriptor()
    }
    /// What happened since the last call.
    #[must_use]
    pub fn events(&self) -> Vec<Followed> {
        self.news.clear();
        self.events.try_iter().collect()
    }
    /// Ends following, once the kernel has detached from all processes. Returns the remaining [`Self::events`]. A
    /// process that is parked stays parked.
    #[must_use]
    pub fn stop(mut self) -> Vec<Followed> {
        self.end();
        self.events()
    }
    fn end(&mut self) {
        // If the thread has ended already, the order goes nowhere.
        drop(self.orders.send(Order::Stop));
        if let Some(Ok(Ok(own))) = self.thread.take().map(JoinHandle::join) {
            until_gone(&Path::new("/proc").join(own));
        }
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
        let follower = Follower::start().expect("a thread");
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
