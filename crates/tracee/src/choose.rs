//! Which thread makes our calls.
//!
//! Input: what /proc shows of each thread. Output: a held thread and a session on it. First choice is a
//! thread that does not notice: it sleeps in a call that the kernel restarts by itself, or for ever in one
//! that can be made again. Next is one that runs. Last, after waiting for others, is one whose finite timeout
//! begins anew (reported).

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::calls::{Interruption, Repair, classify};
use crate::error::TargetError;
use crate::maps::Mapping;
use crate::numbers::{CLOCK_MAY_BE_DENIED, forgets_timeout, is_last_choice};
use crate::remote::RemoteCaller;
use crate::remote_options::{RemoteOptions, RemoteReport};
use crate::serve::Guard;
use crate::session::Session;
use crate::status::InCall;
use crate::stuck::Stuck;
use crate::sys::{fd, signals};

/// Limit for a thread's stop, if it runs or sleeps interruptibly. It takes microseconds where the thread gets
/// a CPU.
pub(crate) const STOP_TIME: Duration = Duration::from_secs(2);
/// How long to wait while every thread waits uninterruptibly, as a thread does until its page is read, or
/// until a child made by vfork executes its program.
const UNINTERRUPTIBLE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fitness {
    Restarts,
    Running,
    Timeout,
    Unfit,
}

impl<'p> Batch<'p> {
    /// Stops one fit thread for remote calls. `guard` is used as in [`Self::serve`]: the thread may stand at
    /// a guard trap when its turn comes, and in a program of one thread no other can make the calls.
    ///
    /// # Errors
    /// When no thread is fit, with the reason.
    pub fn remote(
        &mut self,
        options: &RemoteOptions,
        guard: Guard<'_>,
    ) -> Result<RemoteCaller<'_, 'p>, TargetError> {
        let maps = self.process.maps()?;
        let start = Instant::now();
        let mut why = None;
        loop {
            let late = start.elapsed() >= options.patience;
            let worst = if late { Fitness::Timeout } else { Fitness::Running };
            let candidates = self.candidates(worst);
            for tid in candidates {
                match self.try_thread(tid, &maps, options, guard) {
                    Ok((session, report)) => {
                        return Ok(RemoteCaller {
                            batch: self,
                            session: Some(session),
                            release: true,
                            report,
                        });
                    }
                    Err(error) if self.gone.is_some() => return Err(error),
                    // Why a thread is unfit is the better error; that another one did not stop comes second.
                    Err(error) => {
                        why = why.filter(|e| matches!(e, TargetError::NoCaller { .. })).or(Some(error))
                    }
                }
            }
            let enough = start.elapsed() >= UNINTERRUPTIBLE || signals::asked_to_end(start);
            if late && (why.is_some() || enough) {
                return Err(why.unwrap_or_else(|| self.no_thread()));
            }
            self.serve(guard)?;
            crate::sys::wait::pause(start.elapsed());
        }
    }
    /// A thread that may not read the clock that stubs read (prctl PR_GET_TSC), if there is one. The right
    /// belongs to each thread, and the main thread's is no evidence for the others, so each thread is asked.
    ///
    /// # Errors
    /// When a thread cannot be asked.
    pub fn clock_denied_to(
        &mut self,
        options: &RemoteOptions,
        guard: Guard<'_>,
    ) -> Result<Option<u32>, TargetError> {
        let mut denied = None;
        if CLOCK_MAY_BE_DENIED {
            self.each_thread(options, guard, &mut |caller| {
                let allowed = caller.tsc_allowed()?;
                denied = (!allowed).then_some(caller.tid());
                Ok(allowed)
            })?;
        }
        Ok(denied)
    }
    /// Makes each thread make calls in its turn, until `ask` returns false. A thread is stopped only for its
    /// own calls. One that is born meanwhile is asked too. One whose call has a timeout gets
    /// `options.patience` to leave it first. One that no signal reaches in all that time is not asked: it
    /// waits for the child of its vfork, or for a device.
    fn each_thread(
        &mut self,
        options: &RemoteOptions,
        guard: Guard<'_>,
        ask: &mut dyn FnMut(&mut RemoteCaller<'_, 'p>) -> Result<bool, TargetError>,
    ) -> Result<(), TargetError> {
        let maps = self.process.maps()?;
        let start = Instant::now();
        let mut asked = HashSet::new();
        loop {
            let worst = if start.elapsed() >= options.patience { Fitness::Timeout } else { Fitness::Running };
            let mut open = self.threads();
            open.retain(|tid| !asked.contains(tid));
            if open.is_empty() {
                return Ok(());
            }
            for tid in open {
                if self.has_ended(tid) {
                    asked.insert(tid);
                    continue;
                }
                if self.fitness(tid) > worst {
                    continue;
                }
                let (session, report) = match self.try_thread(tid, &maps, options, guard) {
                    Ok(begun) => begun,
                    Err(_) if self.gone.is_none() && self.has_ended(tid) => continue,
                    Err(error) => return Err(error),
                };
                asked.insert(tid);
                let mut caller = RemoteCaller { batch: self, session: Some(session), release: true, report };
                let goes_on = ask(&mut caller)?;
                caller.finish()?;
                if !goes_on {
                    return Ok(());
                }
            }
            if start.elapsed() >= options.patience + UNINTERRUPTIBLE {
                return Ok(());
            }
            self.serve(guard)?;
            crate::sys::wait::pause(start.elapsed());
        }
    }
    /// Whether a thread has ended.
    fn has_ended(&self, tid: u32) -> bool {
        !self.tracees.contains_key(&tid)
            || self.process.thread_status(tid).map_or(true, |status| matches!(status.state, 'Z' | 'X'))
    }
    fn no_thread(&self) -> TargetError {
        let pid = self.process.pid();
        let threads = self.threads();
        let Some(&first) = threads.first() else { return self.process.gone("it ended") };
        let of = if threads.len() == 1 {
            "its thread".to_owned()
        } else {
            format!("none of its {} threads", threads.len())
        };
        let can = if threads.len() == 1 { "cannot" } else { "can" };
        let why = format!("{of} {can} make them: {}", Stuck::of(pid, first));
        TargetError::NoCaller { pid, why }
    }
    /// Threads that are no worse than `worst`, best first. The search ends when three of the best kind are
    /// found.
    fn candidates(&self, worst: Fitness) -> Vec<u32> {
        let mut ranked = Vec::new();
        for tid in self.threads() {
            let fitness = self.fitness(tid);
            if fitness <= worst {
                ranked.push((fitness, tid));
            }
            if ranked.iter().filter(|(f, _)| *f == Fitness::Restarts).count() >= 3 {
                break;
            }
        }
        ranked.sort_unstable();
        ranked.into_iter().map(|(_, tid)| tid).collect()
    }
    fn fitness(&self, tid: u32) -> Fitness {
        let state = self.process.thread_status(tid).map_or('X', |s| s.state);
        match (state, self.process.in_call(tid)) {
            ('D' | 'Z' | 'X', _) | (_, Err(_)) => Fitness::Unfit,
            ('S', _) if Stuck::of(self.process.pid(), tid).is_frozen() => Fitness::Unfit,
            (_, Ok(InCall::Running)) => Fitness::Running,
            (_, Ok(InCall::Elsewhere { .. })) => Fitness::Restarts,
            (_, Ok(InCall::Call { nr, .. })) if is_last_choice(nr as i64) => Fitness::Timeout,
            (_, Ok(InCall::Call { nr, args, .. })) => match self.interruption(nr as i64, &args) {
                Interruption::EintrTimeout => Fitness::Timeout,
                Interruption::Restarts | Interruption::EintrEndless => Fitness::Restarts,
            },
        }
    }
    /// What an interruption does to a call. The timeouts of a socket are read through a copy of the
    /// descriptor.
    pub(crate) fn interruption(&self, nr: i64, args: &[u64; 6]) -> Interruption {
        classify(nr, args, &|number, sending| {
            let copy = self.process.descriptor(number).ok()?;
            Some(fd::has_socket_timeout(copy.as_fd(), sending).unwrap_or(false))
        })
    }
    fn try_thread(
        &mut self,
        tid: u32,
        maps: &[Mapping],
        options: &RemoteOptions,
        guard: Guard<'_>,
    ) -> Result<(Session, RemoteReport), TargetError> {
        let gadgets = self.gadgets(maps)?;
        let since = Instant::now();
        self.hold(tid, STOP_TIME, guard)?;
        match Session::begin(self.process, (tid, self.before(tid)), gadgets, maps, options, since) {
            Ok(session) => {
                let report = self.report_of(&session);
                Ok((session, report))
            }
            Err(error) => {
                self.let_run(tid)?;
                Err(error)
            }
        }
    }
    fn report_of(&self, session: &Session) -> RemoteReport {
        let timeout = session.original.call().is_some_and(|(nr, args)| match session.repair {
            Repair::Again => self.interruption(nr, &args) == Interruption::EintrTimeout,
            Repair::Restarted => forgets_timeout(nr, &args),
            Repair::None | Repair::Eintr => false,
        });
        RemoteReport {
            tid: session.tid,
            interrupted: session.repair == Repair::Eintr,
            restarted_timeout: timeout,
            ..RemoteReport::default()
        }
    }
    /// Begins a session on a thread that is held already. The thread stays held afterwards.
    pub(crate) fn remote_on_held(
        &mut self,
        options: &RemoteOptions,
    ) -> Result<RemoteCaller<'_, 'p>, TargetError> {
        let maps = self.process.maps()?;
        let gadgets = self.gadgets(&maps)?;
        let mut why = None;
        for tid in self.threads() {
            let thread = (tid, self.before(tid));
            match Session::begin(self.process, thread, gadgets, &maps, options, Instant::now()) {
                Ok(session) => {
                    let report = self.report_of(&session);
                    return Ok(RemoteCaller { batch: self, session: Some(session), release: false, report });
                }
                Err(error) => why = Some(error),
            }
        }
        Err(why.unwrap_or_else(|| self.no_thread()))
    }
}
