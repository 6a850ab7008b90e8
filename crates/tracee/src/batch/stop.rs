//! Stops all threads at once, or one for a look, and lets them go on as if nothing had happened.
//!
//! Input: a seized process. Output: registers of every thread, and a report of what the stop cost.
//! Invariants: TGT-3; the end of a [`StoppedAll`] releases all threads, also those that did not stop.
//! Does not: look for saved contexts in signal frames.

use std::time::{Duration, Instant};

use super::choose::any_held;
use super::remote::RemoteCaller;
use super::report::StopReport;
use super::serving::Serving;
use super::trap_actions::Guard;
use crate::error::TargetError;
use crate::regs::Regs;
use crate::remote_options::RemoteOptions;
use crate::status::InCall;
use crate::sys::{ptrace, wait::within};

/// Limit for the stop of all threads together.
const STOP_TIME: Duration = Duration::from_secs(2);

/// All threads of the process, stopped. Dropping it releases them too.
#[derive(Debug)]
pub struct StoppedAll<'b, 'p> {
    serving: &'b mut Serving<'p>,
    since: Instant,
    report: StopReport,
    resumed: bool,
}

impl<'b, 'p> StoppedAll<'b, 'p> {
    /// Stops every thread. If one does not stop, all are released.
    pub(super) fn stop(serving: &'b mut Serving<'p>, guard: Guard<'_>) -> Result<Self, TargetError> {
        let since = Instant::now();
        serving.tracees_mut().order_all();
        let outcome = within(STOP_TIME, || {
            serving.serve(guard)?;
            Ok(serving.tracees().unheld().is_none())
        });
        serving.tracees_mut().end_stopping();
        let laggard = serving.tracees().unheld();
        let threads = serving.tracees().threads().len() as u32;
        let report = StopReport { threads, ..StopReport::default() };
        let stopped = Self { serving, since, report, resumed: false };
        match (outcome?, laggard) {
            (true, _) | (_, None) => Ok(stopped),
            (false, Some(tid)) => {
                let pid = stopped.serving.process().pid();
                drop(stopped);
                Err(TargetError::no_stop(pid, tid, since.elapsed()))
            }
        }
    }
    /// The threads.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        self.serving.tracees().threads()
    }
    /// A thread's registers.
    ///
    /// # Errors
    /// When it is gone.
    pub fn regs(&self, tid: u32) -> Result<Regs, TargetError> {
        let regs = self.serving.tracees().regs(tid);
        regs.map_err(|e| TargetError::system(tid, "read a thread's registers", e))
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
    /// As [`Batch::remote`](crate::Batch::remote).
    pub fn remote(&mut self, options: &RemoteOptions) -> Result<RemoteCaller<'_, 'p>, TargetError> {
        any_held(self.serving, options)
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
        let threads = self.threads();
        let tracees = self.serving.tracees_mut();
        for &tid in &threads {
            tracees.repair(tid, &mut self.report);
        }
        for &tid in &threads {
            if tracees.is_held(tid) {
                tracees.let_run(tid)?;
            } else {
                tracees.withdraw(tid);
            }
        }
        self.report.longest = self.since.elapsed();
        self.serving.sums().add_stop(&self.report);
        Ok(())
    }
}

impl Drop for StoppedAll<'_, '_> {
    fn drop(&mut self) {
        // A drop cannot report an error; if this fails, the process is gone.
        drop(self.let_all_run());
    }
}

/// Where a thread is: instruction pointer and stack pointer; `None` if it is gone. A thread that is blocked is
/// not stopped for this. One that runs is stopped for a moment.
pub(super) fn place_of(
    serving: &mut Serving<'_>,
    tid: u32,
    guard: Guard<'_>,
) -> Result<Option<(u64, u64)>, TargetError> {
    let process = serving.process();
    match process.in_call(tid) {
        Ok(InCall::Call { sp, pc, .. } | InCall::Elsewhere { sp, pc }) => return Ok(Some((pc, sp))),
        Ok(InCall::Running) => {}
        Err(_) => return Ok(None),
    }
    let since = Instant::now();
    if let Err(error) = serving.hold(tid, guard) {
        return if process.thread_status(tid).is_ok() { Err(error) } else { Ok(None) };
    }
    let place = serving.tracees().regs(tid).ok().map(|regs| (regs.pc(), regs.sp()));
    let mut report = StopReport::default();
    serving.tracees().repair(tid, &mut report);
    serving.tracees_mut().let_run(tid)?;
    report.longest = since.elapsed();
    serving.sums().add_stop(&report);
    Ok(place)
}
