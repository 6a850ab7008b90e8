//! Processes that run another program while they are watched: the variables are looked up again in it.
//!
//! In: execs as the kernel reports them. Out: [`NewProgram`]s, and more places watched. No thread is stopped,
//! so the new program runs for a moment before it is armed; that time is reported. Libraries are not mapped
//! yet when a program begins. So what is not found is looked for again until [`PATIENCE_NS`] have passed.

use std::time::Duration;

use trapline_tracee::Process;
use trapline_watch::Exec;

use super::{WatchSession, Watched, target_of, watched_places};
use crate::error::Error;
use crate::traced::cpu_time;

/// Time limit since the exec; longer than a program takes to map its libraries.
const PATIENCE_NS: u64 = 500_000_000;

/// A watched process runs another program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewProgram {
    /// Process id.
    pub pid: u32,
    /// Name of the program.
    pub comm: String,
    /// Time of the exec, on the clock of accesses.
    pub time_ns: u64,
    /// Places that are watched in it: a part of [`WatchSession::watched`]; empty if there are none.
    pub watched: std::ops::Range<usize>,
    /// How long it ran before they were armed.
    pub unwatched: Duration,
    /// What was not found in it, or why nothing is watched.
    pub misses: Vec<String>,
}

impl WatchSession {
    /// Processes that have run another program since the last call, and what is watched there.
    pub fn take_programs(&mut self) -> Vec<NewProgram> {
        std::mem::take(&mut self.programs)
    }
    pub(super) fn follow_execs(&mut self) {
        let mut execs = std::mem::take(&mut self.unsettled);
        let new = self.watching.take_execs();
        // A later exec of the same process replaces an earlier one.
        execs.retain(|one| !new.iter().any(|later| later.pid == one.pid));
        for exec in execs.into_iter().chain(new) {
            let looked = if self.forks { self.look_again(&exec) } else { Ok(Vec::new()) };
            let waited = trapline_tracee::perf::monotonic_ns().saturating_sub(exec.time_ns);
            let last = self.watched.len();
            let (found, misses) = match looked {
                Ok(misses) if self.forks => (self.found_last(), misses),
                Ok(_) => (0, vec!["it is not watched any more; -f follows it".to_owned()]),
                Err(Error::NoPlace { .. }) if waited < PATIENCE_NS => {
                    self.unsettled.push(exec);
                    continue;
                }
                Err(Error::NoPlace { misses }) => (0, misses),
                Err(error) => (0, vec![error.to_string()]),
            };
            self.programs.push(NewProgram {
                pid: exec.pid,
                comm: exec.comm,
                time_ns: exec.time_ns,
                watched: last - found..last,
                unwatched: Duration::from_nanos(waited),
                misses,
            });
        }
    }
    /// Number of places of the target that was added last.
    fn found_last(&self) -> usize {
        self.watched.len() - self.first.last().copied().unwrap_or(0)
    }
    /// Finds the places in the new program, and arms them. Returns what was not found.
    fn look_again(&mut self, exec: &Exec) -> Result<Vec<String>, Error> {
        let process = Process::open(exec.pid)?;
        let known = self.watching.targets().len();
        let armed = self.arm_again(process);
        if armed.is_err() {
            self.locator.borrow_mut().keep_first(known);
        }
        armed
    }
    fn arm_again(&mut self, process: Process) -> Result<Vec<String>, Error> {
        let pid = process.pid();
        let (found, misses) = watched_places::find(&process, &mut self.locator.borrow_mut(), &self.specs)?;
        if found.is_empty() {
            return Err(Error::NoPlace { misses });
        }
        self.watching.add(target_of(process, &found), &mut |_| {})?;
        // What the process used before counts with its former program.
        let known = self.watched.iter().any(|one: &Watched| one.pid == pid);
        self.cpu_began.push(if known { Duration::MAX } else { cpu_time(pid).unwrap_or_default() });
        self.first.push(self.watched.len());
        self.watched.extend(found);
        Ok(misses)
    }
}
