//! Seizing the threads of a process that may execute another program meanwhile.
//!
//! In: thread ids. Out: seized threads, and those that ended before the next was seized. Invariants: TGT-13 a
//! process can always end its threads, also while they are being seized. Does not: decide which threads to
//! seize, serve stops.
//!
//! # What blocks what
//!
//! | step | T, a thread that calls `execve` | | the tracer |
//! |---|---|---|---|
//! | E1 | takes the process' `cred_guard_mutex` | S1 | PTRACE_SEIZE of Z: takes that mutex and gives it back |
//! | E2 | kills all other threads | S2 | PTRACE_SEIZE of the next: waits for the mutex |
//! | E3 | waits until all of them are gone | S3 | serves: waits for threads that have ended |
//! | E4 | the new program; gives the mutex back | | |
//!
//! - *S1, E1, E2, S2*: Z is dead, and is gone only when its tracer has waited for it (S3). The tracer waits
//!   for the mutex, and T waits for Z, so neither would ever go on. (S2 is interruptible, but the kernel
//!   begins it again.) So another thread of ours waits for Z instead, which it may do for a tracee of any of
//!   our threads: [`Seizing::attend`].
//! - *S2 has returned while the attendant looks*: both hold the lock around their steps. So a thread is
//!   reaped only inside one S2, and the tracer receives its id with the result of that S2. An id that is
//!   given to a new thread cannot be mistaken for the old one.
//! - *the main thread is dead*: the kernel keeps it until all others are gone. It may be a child of ours that
//!   other code waits for. It is left alone, and T takes its place.

use std::collections::HashMap;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::living;
use crate::sys::{ptrace, wait};

/// Time that one S2 may take before the attendant looks. It normally takes microseconds.
const PATIENCE: Duration = Duration::from_millis(10);

/// State that a tracer and its attendant share.
#[derive(Debug)]
pub(crate) struct Seizing {
    options: i32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the S2 that the tracer is in.
    inside: Option<u64>,
    attempts: u64,
    over: bool,
    reaped: Vec<u32>,
}

/// Dropping this ends the seizing.
pub(crate) struct Over<'a>(&'a Seizing);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock().over = true;
        self.0.changed.notify_all();
    }
}

impl Default for Seizing {
    /// With all options.
    fn default() -> Self {
        Self { options: ptrace::OPTIONS, state: Mutex::default(), changed: Condvar::new() }
    }
}

impl Seizing {
    /// Without what is forked.
    pub(crate) fn for_threads() -> Self {
        Self { options: ptrace::THREADS_ONLY, ..Self::default() }
    }
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// A guard that the tracer holds while it seizes.
    pub(crate) const fn until_dropped(&self) -> Over<'_> {
        Over(self)
    }
    /// Seizes a thread that is not among the tracees; `None` if it is. Removes those that have ended and were
    /// reaped meanwhile; no other wait reports them.
    pub(crate) fn seize<T>(&self, tid: u32, tracees: &mut HashMap<u32, T>) -> Option<io::Result<()>> {
        if tracees.contains_key(&tid) {
            return None;
        }
        let mut state = self.lock();
        state.attempts += 1;
        state.inside = Some(state.attempts);
        drop(state);
        let seized = ptrace::seize(tid, self.options);
        let mut state = self.lock();
        state.inside = None;
        state.reaped.drain(..).for_each(|tid| drop(tracees.remove(&tid)));
        Some(seized)
    }
    /// Seizes all threads of a process, until a listing has no new one. `tracee`: what is noted of each.
    ///
    /// # Errors
    /// When none of them is a tracee then: the first refusal, or that the process has no threads.
    pub(crate) fn seize_all<T>(
        self,
        pid: u32,
        tracees: &mut HashMap<u32, T>,
        tracee: impl Fn() -> T,
    ) -> io::Result<()> {
        let seizing = &self;
        std::thread::scope(|scope| {
            let over = seizing.until_dropped();
            let attendant = std::thread::Builder::new().name("trapline-seizing".into());
            attendant.spawn_scoped(scope, || seizing.attend(pid))?;
            let done = seizing.seize_listed(pid, tracees, tracee);
            drop(over);
            done
        })
    }
    fn seize_listed<T>(
        &self,
        pid: u32,
        tracees: &mut HashMap<u32, T>,
        tracee: impl Fn() -> T,
    ) -> io::Result<()> {
        let mut refused = None;
        loop {
            let (listed, mut any) = (living::threads(pid)?, false);
            for &tid in &listed {
                match self.seize(tid, tracees) {
                    None => {}
                    Some(Ok(())) => {
                        any = true;
                        tracees.insert(tid, tracee());
                    }
                    Some(Err(error)) => refused = refused.or(Some(error)),
                }
            }
            if any {
                continue;
            }
            let none = || refused.unwrap_or_else(|| io::Error::other("it has no threads"));
            return if listed.iter().any(|tid| tracees.contains_key(tid)) { Ok(()) } else { Err(none()) };
        }
    }
    /// Reaps ended threads of `pid` while the tracer cannot; returns when seizing is over.
    pub(crate) fn attend(&self, pid: u32) {
        let mut state = self.lock();
        while !state.over {
            let before = state.inside;
            (state, _) = self.changed.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            if before.is_some() && before == state.inside {
                state.reaped.extend(reap(pid));
            }
        }
    }
}

/// Reaps threads that have ended, and returns their ids.
fn reap(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let tids = tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    tids.filter(|&tid| tid != pid && wait::reap(tid)).collect()
}
