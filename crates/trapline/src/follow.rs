//! `-f`: follows processes through fork and exec.
//!
//! In: processes under trace. Out: programs that they and their children execute, each parked, to be probed
//! and let go. Invariants: FOL-1 only one tracer holds a process, so it is not followed while a batch is at work
//! in it. The others are (`tracee`'s `follow/release.rs`). Does not: patch.

use std::collections::BTreeSet;

use trapline_tracee::{Again, Followed, Follower, Handover, Parked, Process, runs};

use crate::report::Unprobed;

/// State of following.
#[derive(Debug, Default)]
pub(crate) struct Following {
    /// Whether to follow at all.
    pub(crate) wanted: bool,
    /// Pid of the launched command, if there is one.
    pub(crate) child: Option<u32>,
    follower: Option<Follower>,
    /// Pids of all followed processes, including those in which nothing is probed.
    pids: BTreeSet<u32>,
    /// Processes that were let go for a batch, opened before that.
    released: Vec<Process>,
    /// Programs that were executed while a batch held their process.
    handover: Handover,
    waiting: Vec<Followed>,
    /// Pids of programs that ran on from their entry points before they were let go.
    strayed: Vec<u32>,
    /// Programs that ran without having been held at their entry points.
    unparked: Vec<Unprobed>,
}

impl Following {
    /// No process is followed yet.
    pub(crate) fn new(wanted: bool) -> Self {
        Self { wanted, ..Self::default() }
    }
    /// Opens a followed process for batches, which then park what it executes.
    pub(crate) fn opened(&self, process: Process) -> Process {
        if self.wanted { process.with_exec(self.handover.at_exec()) } else { process }
    }
    /// Follows one more process from now on, if following is wanted.
    pub(crate) fn add(&mut self, pid: u32) {
        self.pids.insert(pid);
    }
    /// Lets go of a process, so that a batch can seize it.
    pub(crate) fn pause(&mut self, pid: u32) {
        let Some(follower) = &self.follower else { return };
        if self.released.iter().any(|process| process.pid() == pid) {
            return;
        }
        let (Ok(kept), Ok(process)) = (Process::open(pid), Process::open(pid)) else { return };
        match follower.release(process) {
            Ok(()) => self.released.push(kept),
            Err(_) => self.pause_all(),
        }
    }
    /// Lets go of all processes: the end of a tracer stops no thread.
    fn pause_all(&mut self) {
        let opened: Vec<Process> = self.pids.iter().filter_map(|&pid| Process::open(pid).ok()).collect();
        if let Some(follower) = self.follower.take() {
            let (pids, events) = follower.stop();
            self.pids.extend(pids);
            self.waiting.extend(events);
            self.released = opened;
        }
    }
    /// Follows all processes again that are still alive. Returns notices about those that it could not
    /// follow.
    pub(crate) fn resume(&mut self) -> Vec<String> {
        if !self.wanted || self.follower.is_some() && self.released.is_empty() {
            return Vec::new();
        }
        let mut troubles = Vec::new();
        let mut follow = |pid: u32, followed: std::io::Result<()>| {
            if let Err(error) = followed
                && runs(pid)
            {
                troubles.push(format!("cannot follow process {pid}: {error}"));
            }
        };
        let starts = self.follower.is_none();
        if starts {
            match Follower::start(self.child) {
                Ok(follower) => self.follower = Some(follower),
                Err(error) => return vec![format!("cannot follow: {error}")],
            }
        }
        let Some(follower) = &self.follower else { return Vec::new() };
        self.waiting.extend(follower.events());
        self.waiting.extend(self.handover.take());
        let parked: BTreeSet<u32> = self.waiting.iter().filter_map(at_entry).collect();
        self.pids.retain(|&pid| runs(pid));
        let born = self.waiting.iter().filter_map(born);
        let known: BTreeSet<u32> = self.pids.iter().copied().chain(born).collect();
        let again: Vec<Process> = self.released.drain(..).collect();
        let released: BTreeSet<u32> = again.iter().map(Process::pid).collect();
        for process in again.into_iter().filter(|process| !parked.contains(&process.pid())) {
            follow(process.pid(), follower.again(Again { process, known: known.clone() }));
        }
        for &pid in self.pids.iter().filter(|pid| starts && !parked.contains(pid) && !released.contains(pid))
        {
            follow(pid, follower.follow(pid));
        }
        troubles
    }
    /// Programs that were executed since the last call, each parked.
    pub(crate) fn executed(&mut self) -> Vec<Parked> {
        if let Some(follower) = &self.follower {
            self.waiting.extend(follower.events());
        }
        self.waiting.extend(self.handover.take());
        let mut executed = Vec::new();
        for event in self.waiting.drain(..) {
            match event {
                Followed::Born { child, .. } => {
                    self.pids.insert(child);
                }
                Followed::Exited { pid } => drop(self.pids.remove(&pid)),
                Followed::AtEntry(parked) => executed.push(parked),
                Followed::Strayed { pid } => self.strayed.push(pid),
                Followed::Unparked { pid, why } => self.unparked.push(Unprobed::new(pid, why)),
            }
        }
        executed
    }
    /// Programs that cannot be probed, since they were not held at their entry points; each is returned once.
    pub(crate) fn take_unparked(&mut self) -> Vec<Unprobed> {
        std::mem::take(&mut self.unparked)
    }
    /// Notices about programs that ran on before they were let go; each is returned once.
    pub(crate) fn take_strayed(&mut self) -> Vec<String> {
        let line = |pid| {
            format!(
                "process {pid} ran on from its entry point while it was being probed, since this tracer had no time: its first hits are missed"
            )
        };
        self.strayed.drain(..).map(line).collect()
    }
    /// Whether any process is left to follow.
    pub(crate) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.pids.iter().any(|&pid| runs(pid))
    }
    /// Ends following; parked programs run on.
    pub(crate) fn stop(&mut self) {
        self.wanted = false;
        self.pause_all();
        self.waiting.extend(self.handover.take());
        for event in self.waiting.drain(..) {
            if let Followed::AtEntry(parked) = event {
                // A program that cannot be released is gone.
                drop(parked.release());
            }
        }
    }
    /// Lets a parked program run. It is followed from then on if `may` is set and following is wanted.
    pub(crate) fn let_go(&mut self, parked: Parked, may: bool) -> std::io::Result<()> {
        match &self.follower {
            Some(follower) if may => {
                self.pids.insert(parked.pid());
                follower.resume(parked)
            }
            _ => {
                let pid = parked.pid();
                self.pids.remove(&pid);
                if !parked.release()? {
                    self.strayed.push(pid);
                }
                Ok(())
            }
        }
    }
}

fn at_entry(event: &Followed) -> Option<u32> {
    match event {
        Followed::AtEntry(parked) => Some(parked.pid()),
        _ => None,
    }
}

fn born(event: &Followed) -> Option<u32> {
    match event {
        Followed::Born { child, .. } => Some(*child),
        _ => None,
    }
}
