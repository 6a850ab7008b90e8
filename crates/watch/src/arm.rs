//! Arming all threads of a process, and those that are born meanwhile: all or nothing (WCH-2).
//!
//! Protocol. List the threads; open every breakpoint of each that is not armed yet, disabled; list again, until a listing has
//! nobody new; only then enable. A thread that is gone is no error. A thread born by an armed one inherits its events and shows up
//! in the next listing too: whether it inherited all of them (its maker may have been half armed) nobody tells, so it is armed
//! as well. Then some of its accesses give two samples, one under an identifier of its own, one under its maker's; the reader
//! drops the latter ([`crate::watching`]), so every access counts once. Any other failure drops what was opened: closing an event
//! disarms it.
//!
//! A thread cannot be missed: if it was born after its maker was armed it inherits; if before, it is in a listing that was
//! read after that, or ended.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use trapline_target::perf::{Armed, Breakpoint, NotArmed, SampleRings, allow_files};
use trapline_target::{Process, TargetError};

use crate::error::{NoSlots, WatchError};
use crate::holders::{comm, holders};

/// How far arming has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Threads armed.
    pub done: usize,
    /// Threads known.
    pub of: usize,
    /// Since it began.
    pub elapsed: Duration,
}

/// One armed thread.
#[derive(Debug)]
pub(crate) struct ArmedThread {
    pub(crate) tid: u32,
    /// One for each breakpoint asked for.
    pub(crate) armed: Vec<Armed>,
}

/// Opens `points` for all threads of a process, not yet enabled.
pub(crate) fn arm(
    process: &Process,
    rings: &SampleRings,
    points: &[Breakpoint],
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<ArmedThread>, WatchError> {
    let begun = Instant::now();
    let mut seen = HashSet::new();
    let mut all: Vec<ArmedThread> = Vec::new();
    loop {
        let fresh: Vec<u32> = process.threads()?.into_iter().filter(|tid| seen.insert(*tid)).collect();
        if fresh.is_empty() {
            break;
        }
        make_room(rings, seen.len(), points.len())?;
        for (index, tid) in fresh.iter().enumerate() {
            match arm_thread(rings, *tid, points) {
                Ok(Some(armed)) => all.push(ArmedThread { tid: *tid, armed }),
                Ok(None) => {}
                Err(error) => {
                    // What is open must be closed before it is asked who else holds slots.
                    drop(all);
                    return Err(explain(rings, error, points));
                }
            }
            progress(Progress {
                done: all.len(),
                of: all.len() + fresh.len() - index - 1,
                elapsed: begun.elapsed(),
            });
        }
    }
    if all.is_empty() {
        return Err(TargetError::Gone { pid: process.pid(), how: "it ended".to_owned() }.into());
    }
    Ok(all)
}

fn make_room(rings: &SampleRings, threads: usize, points: usize) -> Result<(), WatchError> {
    let wanted = (threads * points * rings.cpus()) as u64;
    let allowed = allow_files(wanted).map_err(|source| WatchError::Rings { source })?;
    if allowed < wanted {
        return Err(WatchError::NoFiles { threads, cpus: rings.cpus(), wanted, allowed });
    }
    Ok(())
}

/// `None` for a thread that is gone.
fn arm_thread(rings: &SampleRings, tid: u32, points: &[Breakpoint]) -> Result<Option<Vec<Armed>>, NotArmed> {
    let mut armed = Vec::with_capacity(points.len());
    for (index, &point) in points.iter().enumerate() {
        match rings.arm(tid, point, index == 0) {
            Ok(one) => armed.push(one),
            Err(error) if is_gone(&error.source) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(armed))
}

fn is_gone(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(ESRCH)
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const ENOSPC: i32 = 28;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// What the kernel's error means.
pub(crate) fn explain(rings: &SampleRings, error: NotArmed, points: &[Breakpoint]) -> WatchError {
    let NotArmed { tid, source, .. } = error;
    match source.raw_os_error() {
        Some(ENOSPC) => {
            let free = |tid| points.first().map_or(Ok(0), |&point| rings.free_slots(tid, point)).unwrap_or(0);
            WatchError::NoSlots(Box::new(NoSlots {
                tid,
                comm: comm(tid),
                slots: free(trapline_target::perf::this_thread()),
                free: free(tid),
                wanted: points.len() as u32,
                holders: holders(tid),
            }))
        }
        Some(EPERM | EACCES) => WatchError::Denied { tid, source, paranoid: paranoid() },
        Some(ENODEV | ENOENT | ENOSYS | EOPNOTSUPP) => WatchError::NoHardware { why: source.to_string() },
        _ => WatchError::Kernel { tid, source },
    }
}

/// The kernel's setting, as it stands.
pub(crate) fn paranoid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
        .map_or_else(|_| "unknown".into(), |text| text.trim().to_owned())
}
