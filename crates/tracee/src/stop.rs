//! Stops all threads at once, and lets them go on as if nothing had happened.
//!
//! Input: a seized process. Output: registers of every thread, and a report of what the stop cost.
//! Invariants: TGT-3. Does not: look for saved contexts in signal frames.

use std::time::{Duration, Instant};

use crate::batch::Batch;
use crate::calls::{Interruption, Repair};
use crate::error::TargetError;
use crate::regs::Regs;
use crate::remote::RemoteCaller;
use crate::remote_options::RemoteOptions;
use crate::serve::Guard;
use crate::session::may_redo_eintr;
use crate::status::InCall;
use crate::sys::ptrace;

/// Limit for the stop of all threads together.
const STOP_TIME: Duration = Duration::from_secs(2);

/// What a stop of all threads cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StopReport {
    /// Threads stopped.
    pub threads: u32,
    /// Calls that returned EINTR to the program because of the tracer.
    pub interrupted: u32,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u32,
    /// Time from the first order to stop to the last release.
    pub longest: Duration,
}

/// All threads of the process, stopped. Dropping it releases them too.
#[derive(Debug)]
pub struct StoppedAll<'b, 'p> {
    batch: &'b mut Batch<'p>,
    since: Instant,
    report: StopReport,
    resumed: bool,
}

impl<'p> Batch<'p> {
    /// Stops every thread.
    ///
    /// # Errors
    /// When a thread does not stop; then all are released.
    pub fn stop_all(&mut self, guard: Guard<'_>) -> Result<StoppedAll<'_, 'p>, TargetError> {
        let since = Instant::now();
        self.stopping = true;
        for tid in self.threads() {
            let Some(tracee) = self.tracees.get_mut(&tid) else { continue };
            if tracee.held.is_none() && !std::mem::replace(&mut tracee.wanted, true) {
                // A thread that was killed meanwhile needs no order.
                drop(self.order(tid));
            }
        }
        let pid = self.process.pid();
        let all_held = |batch: &Batch<'_>| batch.tracees.values().all(|t| t.tgid != pid || t.held.is_some());
        let outcome = self.serve_until(guard, STOP_TIME, &mut { all_held });
        self.stopping = false;
        let laggard =
            self.tracees.iter().find(|(_, t)| t.tgid == pid && t.held.is_none()).map(|(&tid, _)| tid);
        let threads = self.threads().len() as u32;
        let report = StopReport { threads, ..StopReport::default() };
        let stopped = StoppedAll { batch: self, since, report, resumed: false };
        match (outcome?, laggard) {
            (true, _) | (_, None) => Ok(stopped),
            (false, Some(tid)) => {
                drop(stopped);
                Err(TargetError::no_stop(pid, tid, since.elapsed()))
            }
        }
    }
}

impl<'p> StoppedAll<'_, 'p> {
    /// The threads.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        self.batch.threads()
    }
    /// A thread's registers.
    ///
    /// # Errors
    /// When it is gone.
    pub fn regs(&self, tid: u32) -> Result<Regs, TargetError> {
        self.batch.regs(tid).map_err(|e| TargetError::system(tid, "read a thread's registers", e))
    }
    /// Changes a thread's registers.
    ///
    /// # Errors
    /// When it is gone.
    pub fn set_regs(&mut self, tid: u32, regs: &Regs) -> Result<(), TargetError> {
        regs.write(tid).map_err(|e| TargetError::system(tid, "set a thread's registers", e))
    }
    /// The bits of an address in which the process may keep a signature (arm64; Arm ARM D8.10). They are no
    /// part of the address itself.
    #[must_use]
    pub fn signature(&self) -> u64 {
        self.threads().into_iter().find_map(ptrace::signature).unwrap_or(0)
    }
    /// Begins remote calls in one of the stopped threads; all stay stopped. If that thread was in a call, the
    /// call begins again: its pc is then that of the `syscall`, no longer behind it.
    ///
    /// # Errors
    /// As [`Batch::remote`].
    pub fn remote(&mut self, options: &RemoteOptions) -> Result<RemoteCaller<'_, 'p>, TargetError> {
        self.batch.remote_on_held(options)
    }
    /// Lets all threads run again, and repairs interrupted calls.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn resume(mut self) -> Result<StopReport, TargetError> {
        self.let_all_run()?;
        Ok(self.report)
    }
    fn let_all_run(&mut self) -> Result<(), TargetError> {
        if std::mem::replace(&mut self.resumed, true) {
            return Ok(());
        }
        let threads = self.batch.threads();
        for &tid in &threads {
            self.repair(tid);
        }
        for &tid in &threads {
            if self.batch.tracees.get(&tid).is_some_and(|t| t.held.is_some()) {
                self.batch.let_run(tid)?;
            } else if let Some(tracee) = self.batch.tracees.get_mut(&tid) {
                tracee.wanted = false;
            }
        }
        self.report.longest = self.since.elapsed();
        let sums = &mut self.batch.report;
        sums.longest_stop = sums.longest_stop.max(self.report.longest);
        sums.interrupted_syscalls += u64::from(self.report.interrupted);
        sums.restarted_timeouts += u64::from(self.report.restarted_timeouts);
        Ok(())
    }
    fn repair(&mut self, tid: u32) {
        self.batch.repair(tid, &mut self.report);
    }
}

impl Batch<'_> {
    /// Repairs a call that returned EINTR. Other restarts are made by the kernel, for which the thread never
    /// left its stop.
    fn repair(&mut self, tid: u32, report: &mut StopReport) {
        let Ok(regs) = self.regs(tid) else { return };
        let (true, Some((nr, args))) = (regs.shows_eintr(), regs.call()) else { return };
        let process = self.process;
        let mask = ptrace::signal_mask(tid).unwrap_or(0);
        match regs.repaired(may_redo_eintr(process, tid, &regs, mask)) {
            (again, Repair::Again) if again.write(tid).is_ok() => {
                let timeout = self.interruption(nr, &args) == Interruption::EintrTimeout;
                report.restarted_timeouts += u32::from(timeout);
            }
            _ => report.interrupted += 1,
        }
    }
    /// Where a thread is: instruction pointer and stack pointer; `None` if it is gone. A thread that is
    /// blocked is not stopped for this. One that runs is stopped for a moment.
    ///
    /// # Errors
    /// When it does not stop.
    pub fn place_of(&mut self, tid: u32, guard: Guard<'_>) -> Result<Option<(u64, u64)>, TargetError> {
        match self.process.in_call(tid) {
            Ok(InCall::Call { sp, pc, .. } | InCall::Elsewhere { sp, pc }) => return Ok(Some((pc, sp))),
            Ok(InCall::Running) => {}
            Err(_) => return Ok(None),
        }
        let since = Instant::now();
        if let Err(error) = self.hold(tid, STOP_TIME, guard) {
            return if self.process.thread_status(tid).is_ok() { Err(error) } else { Ok(None) };
        }
        let place = self.regs(tid).ok().map(|regs| (regs.pc(), regs.sp()));
        let mut report = StopReport::default();
        self.repair(tid, &mut report);
        self.let_run(tid)?;
        let sums = &mut self.report;
        sums.longest_stop = sums.longest_stop.max(since.elapsed());
        sums.interrupted_syscalls += u64::from(report.interrupted);
        sums.restarted_timeouts += u64::from(report.restarted_timeouts);
        Ok(place)
    }
}

impl Drop for StoppedAll<'_, '_> {
    fn drop(&mut self) {
        // A drop cannot report an error; if this fails, the process is gone.
        drop(self.let_all_run());
    }
}
