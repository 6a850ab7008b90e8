//! Arms all threads of a process, and those that are born meanwhile: all or none (WCH-2).
//!
//! Protocol. List the threads. For each new one, take debug registers in our own account, open every
//! breakpoint, and last open its dummy events. List again, until a listing has no new thread that
//! must be armed, and it is known that no armed thread is still creating one that began before
//! ([`crate::settle`]). Accesses count from then on; the
//! samples of those before are thrown away. A thread that is gone is no error. Any other failure drops
//! what was opened: closing an event disarms it and its inherited copies.
//!
//! | a thread born | has | so |
//! |---|---|---|
//! | after all events of its parent were open | all, inherited | it is whole (as [`crate::births`] finds) and left |
//! | | | alone: a program that creates threads without end is armed all the same |
//! | while its parent's were being opened | some or all | a later listing shows it, and it is armed as well. |
//! | | | Then some of its accesses give two samples: one with an identifier of its own, |
//! | | | one with its parent's. The reader drops the latter ([`crate::watching`]), |
//! | | | so every access counts once |
//! | before its parent was armed | none | a later listing shows it, and it is armed; or it has ended |
//! | by a parent that does not settle | unknown | it is armed when its birth is reported, and counted as late |
//! | partly; no debug register is left for its own events | too few | everything of the process is closed, |
//! | | | and arming begins again: it is an ordinary thread then |
//!
//! Where the kernel cannot inherit events, no thread is whole. Births are armed one by one as they are
//! reported, and counted as late.

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use trapline_tracee::perf::{Armed, Breakpoint, NotArmed, SampleRings, allow_files};
use trapline_tracee::{Process, TargetError};

use crate::accounts::Reserved;
use crate::births::Births;
use crate::error::{ENOSPC, ESRCH, WatchError, explain};
use crate::holders::no_registers;
use crate::settle::{self, Maker, PATIENCE};

/// Limit for the listings, after which arming begins again or is given up.
const LISTINGS: usize = 1000;
/// Number of listings where no thread inherits: births after the second are found by their records.
const LISTINGS_ALONE: usize = 2;
/// Limit for the number of beginnings, if threads are born with too few breakpoints.
const BEGINNINGS: usize = 20;

/// The progress of arming.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Number of threads that are armed.
    pub done: usize,
    /// Number of threads that are known.
    pub of: usize,
    /// Time since arming began.
    pub elapsed: Duration,
}

/// One armed thread.
#[derive(Debug)]
pub(crate) struct ArmedThread {
    pub(crate) tid: u32,
    /// One event for each requested breakpoint. They are closed before the debug registers are given back.
    pub(crate) armed: Vec<Armed>,
    pub(crate) reserved: Reserved,
}

/// What is needed to arm threads.
#[derive(Debug)]
pub(crate) struct Armory<'a> {
    pub(crate) rings: &'a SampleRings,
    pub(crate) births: &'a mut Births,
    /// Whether threads inherit breakpoints.
    pub(crate) inherit: bool,
}

/// Why a thread is not armed.
#[derive(Debug)]
pub(crate) enum NotNow {
    Gone,
    /// Our own account has no debug register left.
    Refused,
    Kernel(NotArmed),
}

enum Failure {
    /// A thread was born with a part of the breakpoints, and there is no debug register for the rest.
    Crowded(WatchError),
    Final(WatchError),
}

impl From<NotArmed> for NotNow {
    fn from(error: NotArmed) -> Self {
        if error.source.raw_os_error() == Some(ESRCH) { Self::Gone } else { Self::Kernel(error) }
    }
}

impl Armory<'_> {
    /// Opens `points` for all threads of a process.
    pub(crate) fn arm(
        &mut self,
        process: &Process,
        points: &[Breakpoint],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<ArmedThread>, WatchError> {
        let (mark, begun) = (self.births.mark(), Instant::now());
        let mut beginnings = 0;
        loop {
            beginnings += 1;
            let failure = match self.attempt(process, points, begun, progress) {
                Ok(all) if all.is_empty() => {
                    return Err(TargetError::Gone { pid: process.pid(), how: "it ended".to_owned() }.into());
                }
                Ok(all) => return Ok(all),
                Err(failure) => failure,
            };
            self.births.forget(mark, process.pid());
            match failure {
                Failure::Crowded(_) if beginnings < BEGINNINGS => {}
                Failure::Crowded(error) | Failure::Final(error) => return Err(error),
            }
        }
    }
    fn attempt(
        &mut self,
        process: &Process,
        points: &[Breakpoint],
        begun: Instant,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Vec<ArmedThread>, Failure> {
        let mut seen = HashSet::new();
        let mut all: Vec<ArmedThread> = Vec::new();
        let mut makers = Vec::new();
        let listings = if self.inherit { LISTINGS } else { LISTINGS_ALONE };
        for listing in 0..listings {
            self.births.read();
            let before = self.births.unread();
            let listed = process.threads().map_err(|error| Failure::Final(error.into()))?;
            self.births.read();
            let mut fresh: Vec<u32> = listed.into_iter().filter(|tid| seen.insert(*tid)).collect();
            fresh.retain(|&tid| !self.births.is_whole(tid));
            if fresh.is_empty() {
                if makers.is_empty() || !self.inherit {
                    self.births.armed_up_to(before);
                    return Ok(all);
                }
                self.settle(process, std::mem::take(&mut makers), PATIENCE);
                continue;
            }
            self.make_room(all.len() + fresh.len(), points.len()).map_err(Failure::Final)?;
            for (index, &tid) in fresh.iter().enumerate() {
                match self.arm_thread(tid, points) {
                    Ok(armed) => {
                        all.push(armed);
                        // Mostly this is so at once, and then its first birth is whole, too.
                        let late = self.settle(process, vec![Maker::opened(process, tid)], Duration::ZERO);
                        makers.extend(late);
                    }
                    Err(NotNow::Gone) => {}
                    Err(error) => {
                        // Close what is open before looking for other holders of debug registers.
                        drop(all);
                        let crowded = listing > 0 && error.is_full();
                        let error = self.explain(process, tid, error, points);
                        return Err(if crowded { Failure::Crowded(error) } else { Failure::Final(error) });
                    }
                }
                // What is accessed before all are armed does not count, and must not fill the rings.
                self.rings.discard();
                let (done, left) = (all.len(), fresh.len() - index - 1);
                progress(Progress { done, of: done + left, elapsed: begun.elapsed() });
            }
        }
        if self.inherit {
            drop(all);
            return Err(Failure::Crowded(WatchError::Churn { pid: process.pid(), listings }));
        }
        Ok(all)
    }
    /// Waits until no maker creates a thread that may lack events and is in no listing; returns those that still may.
    fn settle(&mut self, process: &Process, makers: Vec<Maker>, at_most: Duration) -> Vec<Maker> {
        let (settled, rest) = settle::settled(process, makers, at_most);
        self.births.read();
        self.births.settle(&settled);
        rest
    }
    /// Opens everything for one thread, or nothing.
    pub(crate) fn arm_thread(&mut self, tid: u32, points: &[Breakpoint]) -> Result<ArmedThread, NotNow> {
        let reserved = Reserved::take(tid, points).map_err(|_| NotNow::Refused)?;
        let armed = points.iter().map(|&point| self.rings.arm(tid, point)).collect::<Result<_, _>>()?;
        self.births.follow(tid)?;
        Ok(ArmedThread { tid, armed, reserved })
    }
    fn make_room(&self, threads: usize, points: usize) -> Result<(), WatchError> {
        let wanted = (threads * (points + 1) * self.rings.cpus()) as u64;
        let allowed = allow_files(wanted).map_err(|source| WatchError::Rings { source })?;
        if allowed < wanted {
            return Err(WatchError::NoFiles { threads, cpus: self.rings.cpus(), wanted, allowed });
        }
        Ok(())
    }
    fn explain(&self, process: &Process, tid: u32, error: NotNow, points: &[Breakpoint]) -> WatchError {
        match error {
            NotNow::Kernel(error) if error.source.raw_os_error() != Some(ENOSPC) => explain(error),
            NotNow::Gone => explain(NotArmed { tid, cpu: 0, source: io::Error::from_raw_os_error(ESRCH) }),
            NotNow::Kernel(_) | NotNow::Refused => {
                let threads = process.threads().unwrap_or_default();
                WatchError::NoRegisters(Box::new(no_registers(self.rings, tid, &threads, points)))
            }
        }
    }
}

impl NotNow {
    fn is_full(&self) -> bool {
        match self {
            Self::Gone => false,
            Self::Refused => true,
            Self::Kernel(error) => error.source.raw_os_error() == Some(ENOSPC),
        }
    }
}
