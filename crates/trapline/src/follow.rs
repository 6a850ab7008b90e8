//! `-f`: follows processes through fork and exec.
//!
//! In: processes under trace. Out: programs that they and their children execute, each parked, to be probed
//! and let go. Invariants: FOL-1 a process is followed before anything is patched in it, so no birth falls between.
//! Does not: patch.

use std::collections::BTreeSet;

use trapline_tracee::{Followed, Follower, Parked, Process, runs};

use crate::report::Unprobed;

/// State of following.
#[derive(Debug, Default)]
pub(crate) struct Following {
    /// Whether to follow at all.
    pub(crate) wanted: bool,
    follower: Option<Follower>,
    /// Pids of all followed processes, including those in which nothing is probed.
    pids: BTreeSet<u32>,
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
    /// Starts the thread that follows, if following is wanted. Returns a notice if that is not possible.
    pub(crate) fn start(&mut self) -> Option<String> {
        if !self.wanted {
            return None;
        }
        match Follower::start() {
            Ok(follower) => self.follower = Some(follower),
            Err(error) => {
                self.wanted = false;
                return Some(format!("cannot follow: {error}"));
            }
        }
        None
    }
    /// Names the thread that follows, for batches in a process.
    pub(crate) fn opened(&self, process: Process) -> Process {
        match &self.follower {
            Some(follower) => process.with_follower(follower.thread()),
            None => process,
        }
    }
    /// Follows one more process from now on, if following is wanted. Returns a notice if that is not possible.
    pub(crate) fn add(&mut self, pid: u32) -> Option<String> {
        let follower = self.follower.as_ref()?;
        match follower.follow(pid) {
            Err(error) if runs(pid) => Some(format!("cannot follow process {pid}: {error}")),
            Err(_) => None,
            Ok(()) => {
                self.pids.insert(pid);
                None
            }
        }
    }
    /// Programs that were executed since the last call, each parked.
    pub(crate) fn executed(&mut self) -> Vec<Parked> {
        if let Some(follower) = &self.follower {
            self.waiting.extend(follower.events());
        }
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
    /// A descriptor that is readable when a program waits to be probed.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        self.follower.as_ref().map(Follower::descriptor)
    }
    /// Whether any process is left to follow.
    pub(crate) fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.pids.iter().any(|&pid| runs(pid))
    }
    /// Ends following; parked programs run on.
    pub(crate) fn stop(&mut self) {
        self.wanted = false;
        if let Some(follower) = self.follower.take() {
            self.waiting.extend(follower.stop());
        }
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
