//! What is known of a process' threads: what one of them has shown while it was stopped, as far as it holds
//! for all.
//!
//! In: what `install::ask` finds (I2). Out: how stubs reach a thread's rseq area, number and stack; threads for
//! which that does not hold.
//! Does not: stop a thread.

use std::time::Duration;

use trapline_plan::{RseqTraits, ThreadId};
use trapline_tracee::{Process, TargetError};

use crate::threads::library::LibraryThreads;

/// Time between two looks at the threads; births and ends of threads take less.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// What stubs may rely on in every thread.
#[derive(Debug, Default)]
pub(crate) struct KnownThreads {
    /// Whether threads have rseq areas, and where; `None` until a stopped thread has shown it, once.
    pub(crate) rseq: Option<Option<RseqTraits>>,
    /// Which threads the C library made, if it made any.
    pub(crate) library: Option<LibraryThreads>,
    /// How a thread's number is read; found out together with `rseq`.
    pub(crate) id: ThreadId,
    /// Where threads' control blocks say where their stacks are; found out with `rseq`, if it is needed.
    pub(crate) stack_block: Option<i32>,
    /// Every thread may read the clock.
    pub(crate) clock_allowed: bool,
    /// Both actions for faults are ours, and the program had none; checked before each batch.
    pub(crate) only_our_faults: bool,
}

impl KnownThreads {
    /// Whether counter lines belong to CPUs, since threads have rseq areas.
    pub(crate) fn count_by_cpu(&self) -> bool {
        self.rseq.flatten().is_some()
    }
    /// Whether stubs read a thread's number by a system call.
    pub(crate) fn ask_by_call(&self) -> bool {
        self.id == ThreadId::Call
    }
    /// Threads that the C library did not make, if stubs treat all threads as the library's.
    pub(crate) fn strangers(&mut self, process: &Process) -> Result<Vec<u32>, TargetError> {
        let relied_on = self.count_by_cpu() || matches!(self.id, ThreadId::At(_));
        let Some(library) = self.library.as_mut().filter(|_| relied_on) else {
            return Ok(Vec::new());
        };
        library.strangers(process, &mut || {
            std::thread::sleep(BETWEEN_LOOKS);
            Ok(())
        })
    }
}
