//! Everybody stopped at once, and set going again as if nothing had been.

use std::time::Duration;

use crate::batch::Batch;
use crate::error::TargetError;
use crate::regs::Regs;
use crate::remote::{RemoteCaller, RemoteOptions};

/// What a stop of all threads cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StopReport {
    /// Threads stopped.
    pub threads: u32,
    /// Calls that returned EINTR to the program because of us.
    pub interrupted: u32,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u32,
    /// From the first order to stop to the last release.
    pub longest: Duration,
}

/// All threads of the process, stopped. Dropping it releases them too.
#[derive(Debug)]
pub struct StoppedAll<'b, 'p> {
    #[allow(dead_code, reason = "signatures first")]
    batch: &'b mut Batch<'p>,
}

impl<'b, 'p> StoppedAll<'b, 'p> {
    /// The threads.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        todo!()
    }
    /// A thread's registers.
    ///
    /// # Errors
    /// When it is gone.
    pub fn regs(&self, tid: u32) -> Result<Regs, TargetError> {
        let _ = tid;
        todo!()
    }
    /// Changes a thread's registers.
    ///
    /// # Errors
    /// When it is gone.
    pub fn set_regs(&mut self, tid: u32, regs: &Regs) -> Result<(), TargetError> {
        let _ = (tid, regs);
        todo!()
    }
    /// Remote calls by one of the stopped threads, while the others stay stopped.
    ///
    /// # Errors
    /// As [`Batch::remote`].
    pub fn remote(&mut self, options: &RemoteOptions) -> Result<RemoteCaller<'_, 'p>, TargetError> {
        let _ = options;
        todo!()
    }
    /// Lets all run again, with interrupted calls repaired.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn resume(self) -> Result<StopReport, TargetError> {
        todo!()
    }
}
