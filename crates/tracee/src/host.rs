//! What a batch needs of the thread that follows, when it runs there ([`follow`](crate::follow)).
//!
//! In: questions and batches. Out: answers, and results. Does not: follow, or stop anything.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use crate::sys::lend::{Lent, lend};

/// How a process stands with the thread that follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Its threads are traced.
    Followed,
    /// It has executed a program, and is on its way to the place where it will be held.
    Starting,
    /// It is not followed.
    Unknown,
}

/// The thread that follows, as a batch in it sees it.
pub(crate) trait Host: fmt::Debug {
    /// Gives a batch the threads of a process, which are traced. None if it has ended, or executes a program.
    fn lend_threads(&mut self, pid: u32) -> Vec<u32>;
    /// Takes a thread back.
    fn take_back(&mut self, tid: u32, tgid: u32);
    /// Serves all other processes.
    fn serve_others(&mut self);
    /// A process of the batch has given birth to one, which the batch traces.
    fn is_born(&mut self, parent: u32, child: u32);
    /// A process of the batch has ended.
    fn has_ended(&mut self, pid: u32);
    /// A process of the batch stands in the stop of its exec, which was taken. It is the batch's no more.
    fn executes(&mut self, pid: u32) -> io::Result<()>;
}

/// What batches send to that thread.
#[derive(Debug)]
pub(crate) enum Request {
    /// Tells how a process stands.
    Stands(u32, Sender<Standing>),
    /// Runs a batch.
    Batch(Lent<dyn Host>),
}

/// The thread that follows, as batches need it: only the thread that traces a process can stop it. Clones share it.
#[derive(Clone)]
pub struct FollowerThread(Arc<dyn Fn(Request) + Send + Sync>);

impl fmt::Debug for FollowerThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FollowerThread")
    }
}

impl FollowerThread {
    /// `send` drops a request if that thread has ended.
    pub(crate) fn new(send: impl Fn(Request) + Send + Sync + 'static) -> Self {
        Self(Arc::new(send))
    }
    /// How a process stands; unknown if following has ended.
    pub(crate) fn standing(&self, pid: u32) -> Standing {
        let (to, answer) = channel();
        (self.0)(Request::Stands(pid, to));
        answer.recv().unwrap_or(Standing::Unknown)
    }
    /// Runs a batch there. Calls `meanwhile` in the calling thread. `None` if following has ended.
    pub(crate) fn run<T: Send>(
        &self,
        batch: impl FnOnce(&mut dyn Host) -> T + Send,
        meanwhile: impl FnOnce(),
    ) -> Option<std::thread::Result<T>> {
        lend(|lent| (self.0)(Request::Batch(lent)), |host: &mut (dyn Host + 'static)| batch(host), meanwhile)
    }
}
