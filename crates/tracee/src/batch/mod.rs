//! One batch of work on a seized process, in a thread of its own. When that thread ends, the kernel detaches
//! from all tracees. If the process is followed, the batch is in the thread that follows.
//!
//! Input: a process. Output: a thread that may stop the process, make calls in it, and receives every event
//! of it. Invariants: TGT-2; neither seizing nor detaching stops a thread; only threads that this thread
//! traces are waited for. Does not: do any of it by itself. The parts, each with an invariant of its own:
//!
//! | part | what it owns |
//! |---|---|
//! | [`tracees`] | the traced threads: which are to stop, which are held, how each goes on |
//! | [`lifecycle`] | births, executed programs, ends; the events that report them |
//! | [`trap_actions`] | traps in guarded places, and the signal actions to put back |
//! | [`gadgets`] | the code that remote calls go through |
//! | [`serving`] | all of these and the sums: it answers each stop by the part that the stop changes |
//! | [`choose`], [`fitness`] | the choice of the thread that makes calls |
//! | [`remote`], [`function`], [`stop`] | one session of calls, one function, one stop of all threads |

mod choose;
mod fitness;
mod function;
mod gadgets;
mod lifecycle;
mod remote;
mod report;
mod serving;
mod stop;
mod tracees;
mod trap_actions;

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use trapline_record::RemoteAddr;

use self::choose::Choice;
use self::function::{Function, FunctionCall};
use self::serving::Serving;
use self::stop::place_of;
use self::trap_actions::Guard;
use crate::error::TargetError;
use crate::handler::Handler;
use crate::host::{FollowerThread, Host, Standing};
use crate::living::until_gone;
use crate::numbers::CLOCK_MAY_BE_DENIED;
use crate::process::Process;
use crate::remote_options::RemoteOptions;
use crate::seizing::Seizing;
use crate::sys::ptrace::user_dispatch;
use crate::sys::wait::within;

pub use self::remote::RemoteCaller;
pub use self::report::{BatchOptions, BatchReport, Event, Served, StopReport};
pub use self::stop::StoppedAll;

/// A seized process.
#[derive(Debug)]
pub struct Batch<'p> {
    serving: Serving<'p>,
}

impl<'p> Batch<'p> {
    /// Seizes every thread without stopping any, and runs `body` in a thread of its own. That thread's end
    /// detaches. Returns when the kernel has detached from all threads. In a process that is followed, `body` runs in
    /// the thread that follows, and its end detaches from nothing.
    ///
    /// # Errors
    /// When the process cannot be seized; `body`'s own result is inside.
    pub fn run<T: Send>(
        process: &'p Process,
        options: BatchOptions,
        body: impl FnOnce(&mut Batch<'_>) -> T + Send,
    ) -> Result<T, TargetError> {
        let follower = process.follower().map(|thread| (thread, thread.standing(process.pid())));
        match follower {
            Some((thread, Standing::Followed)) => Self::run_in_follower(thread, process, options, body),
            Some((_, Standing::Starting)) => Err(process.gone("it executed another program")),
            Some((_, Standing::Unknown)) | None => Self::run_alone(process, options, body),
        }
    }
    fn run_in_follower<T: Send>(
        thread: &FollowerThread,
        process: &Process,
        options: BatchOptions,
        body: impl FnOnce(&mut Batch<'_>) -> T + Send,
    ) -> Result<T, TargetError> {
        let seizing = &Seizing::default();
        // Also ends the attendance if the work does not run.
        let over = seizing.until_dropped();
        let work = move |host: &mut dyn Host| {
            let serving = Serving::followed(process, options, seizing, host)?;
            drop(over);
            Ok(body(&mut Batch { serving }))
        };
        match thread.run(work, || seizing.attend(process.pid())) {
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(process.gone("the thread that follows it has ended")),
        }
    }
    fn run_alone<T: Send>(
        process: &Process,
        options: BatchOptions,
        body: impl FnOnce(&mut Batch<'_>) -> T + Send,
    ) -> Result<T, TargetError> {
        let seizing = &Seizing::default();
        let work = move || {
            let own = std::fs::read_link("/proc/thread-self");
            let done = Serving::seize(process, options, seizing).map(|serving| body(&mut Batch { serving }));
            (own, done)
        };
        let outcome = std::thread::scope(|scope| {
            let spawned =
                std::thread::Builder::new().name("trapline-batch".into()).spawn_scoped(scope, work)?;
            seizing.attend(process.pid());
            Ok(spawned.join())
        });
        match outcome {
            Ok(Ok((own, result))) => {
                if let Ok(own) = own {
                    until_gone(&Path::new("/proc").join(own));
                }
                result
            }
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(error) => Err(TargetError::system(process.pid(), "start a tracer thread", error)),
        }
    }
    /// The process.
    #[must_use]
    pub const fn process(&self) -> &'p Process {
        self.serving.process()
    }
    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        self.serving.take_events()
    }
    /// The threads of the process that are seized now.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        self.serving.tracees().threads()
    }
    /// Lets a held child run on. With `keep` it stays seized. Without it is detached, unless it is followed.
    ///
    /// # Errors
    /// When the child is not held or is gone.
    pub fn release(&mut self, child: u32, keep: bool) -> Result<(), TargetError> {
        self.serving.tracees_mut().release(child, keep)
    }
    /// Sets the SIGTRAP action to put back if the kernel resets it, which it does when a guard is hit with
    /// SIGTRAP blocked.
    pub const fn set_trap_handler(&mut self, handler: Option<Handler>) {
        self.serving.traps_mut().set_trap(handler);
    }
    /// Sets the SIGILL action to put back in the same case.
    pub const fn set_illegal_handler(&mut self, handler: Option<Handler>) {
        self.serving.traps_mut().set_illegal(handler);
    }
    /// Sums so far.
    #[must_use]
    pub const fn report(&self) -> BatchReport {
        self.serving.report()
    }
    /// Serves the stops that wait, without blocking. It serves only a few for each thread, since threads that
    /// stop faster than they are served must not keep the tracer from going on. `guard` maps the address of a
    /// trapping byte to the address where its thread goes on.
    ///
    /// # Errors
    /// [`TargetError::Gone`] when the process has ended or executed another program.
    pub fn serve(&mut self, guard: Guard<'_>) -> Result<Served, TargetError> {
        self.serving.serve(guard)
    }
    /// Serves until `until` returns true or `at_most` is over; returns whether `until` became true. `until`
    /// is called after each round of stops, and at least every millisecond.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub fn serve_until(
        &mut self,
        guard: Guard<'_>,
        at_most: Duration,
        until: &mut dyn FnMut(&Self) -> bool,
    ) -> Result<bool, TargetError> {
        within(at_most, || {
            self.serve(guard)?;
            Ok(until(self))
        })
    }
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
        Choice::new(&mut self.serving, options, guard)?.any()
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
            Choice::new(&mut self.serving, options, guard)?.each(&mut |caller| {
                let allowed = caller.tsc_allowed()?;
                denied = (!allowed).then_some(caller.tid());
                Ok(allowed)
            })?;
        }
        Ok(denied)
    }
    /// A thread that gets its system calls back as signals, or may at any time (PR_SET_SYSCALL_USER_DISPATCH), if there is
    /// one. All threads are stopped for it.
    ///
    /// # Errors
    /// When a thread does not stop.
    pub fn dispatched(&mut self, guard: Guard<'_>) -> Result<Option<u32>, TargetError> {
        let stopped = self.stop_all(guard)?;
        let found = stopped.threads().into_iter().find(|tid| user_dispatch(*tid).is_some());
        stopped.resume()?;
        Ok(found)
    }
    /// Calls `function(argument)` in a thread that is fit for it, waiting at most `patience` for one. `own` is
    /// code that an allocator, a loader or an unwinder never calls while it holds a lock.
    ///
    /// # Errors
    /// [`TargetError::NoCaller`] when no thread is fit, with the reason; nothing has run then.
    pub fn call_function(
        &mut self,
        function: RemoteAddr,
        argument: u64,
        own: &[Range<u64>],
        patience: Duration,
        guard: Guard<'_>,
    ) -> Result<(), TargetError> {
        let function = Function { address: function, argument, own };
        FunctionCall::new(&mut self.serving, function, guard).run(patience)
    }
    /// Stops every thread.
    ///
    /// # Errors
    /// When a thread does not stop; then all are released.
    pub fn stop_all(&mut self, guard: Guard<'_>) -> Result<StoppedAll<'_, 'p>, TargetError> {
        StoppedAll::stop(&mut self.serving, guard)
    }
    /// Where a thread is: instruction pointer and stack pointer; `None` if it is gone. A thread that is
    /// blocked is not stopped for this. One that runs is stopped for a moment.
    ///
    /// # Errors
    /// When it does not stop.
    pub fn place_of(&mut self, tid: u32, guard: Guard<'_>) -> Result<Option<(u64, u64)>, TargetError> {
        place_of(&mut self.serving, tid, guard)
    }
}
