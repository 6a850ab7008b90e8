//! One batch of work on a seized process, in a thread of its own; when the thread ends the kernel lets everything go.

use std::time::Duration;

use crate::error::TargetError;
use crate::process::Process;
use crate::remote::{RemoteCaller, RemoteOptions};
use crate::stop::StoppedAll;

/// What to listen for.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Hold forked children at their first stop until [`Batch::release`] (else they are let go at once).
    pub hold_children: bool,
}

/// A signal action, as rt_sigaction takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Handler {
    /// Function address, 0 for the default, 1 for ignore.
    pub handler: u64,
    /// SA_ flags.
    pub flags: u64,
    /// Restorer address.
    pub restorer: u64,
    /// Mask, signal `n` at bit `n − 1`.
    pub mask: u64,
}

/// Something that a caller must know of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A child process was born and is held at its first stop, if children are held.
    Forked {
        /// Who forked.
        parent: u32,
        /// The child's pid.
        child: u32,
        /// It runs in its parent's memory (vfork, clone with CLONE_VM): nothing to patch. Never held.
        shares_memory: bool,
    },
    /// A process runs another program now; nothing of ours is in it any more.
    Exec {
        /// Its pid.
        pid: u32,
    },
    /// A process has ended, with its wait status.
    Exited {
        /// Its pid.
        pid: u32,
        /// As `wait` gives it.
        status: i32,
    },
}

/// What one [`Batch::serve`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Served {
    /// Guard traps whose thread was sent on.
    pub guards: u32,
    /// Signals handed on.
    pub signals: u32,
    /// Births of threads.
    pub threads: u32,
}

/// Sums over a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchReport {
    /// Guard traps whose thread was sent on.
    pub guards: u64,
    /// Signals handed on.
    pub signals: u64,
    /// Threads seized.
    pub threads: u64,
    /// Calls that returned EINTR to the program because of us. 0 unless a repair was impossible.
    pub interrupted_syscalls: u64,
    /// Calls with a finite timeout that were restarted in full.
    pub restarted_timeouts: u64,
    /// Longest time that a thread was stopped, from our order to its release.
    pub longest_stop: Duration,
    /// Time that threads were stopped for remote calls, in all.
    pub remote_stop: Duration,
}

/// A seized process.
#[derive(Debug)]
pub struct Batch<'p> {
    process: &'p Process,
}

impl<'p> Batch<'p> {
    /// Seizes every thread without stopping any, runs `body` in a thread of its own, and lets go by ending it.
    ///
    /// # Errors
    /// When the process cannot be seized; `body`'s own result is inside.
    pub fn run<T: Send>(
        process: &'p Process,
        options: BatchOptions,
        body: impl FnOnce(&mut Batch<'_>) -> T + Send,
    ) -> Result<T, TargetError> {
        let _ = (process, options, body);
        todo!()
    }
    /// The process.
    #[must_use]
    pub const fn process(&self) -> &'p Process {
        self.process
    }
    /// Serves all stops that wait, without blocking. `guard` maps the address of a trapping byte to where its thread
    /// goes on.
    ///
    /// # Errors
    /// [`TargetError::Gone`] when the process has ended or executed another program.
    pub fn serve(&mut self, guard: &dyn Fn(u64) -> Option<u64>) -> Result<Served, TargetError> {
        let _ = guard;
        todo!()
    }
    /// Serves until `until` is true or `at_most` is over; says whether it became true. It is asked after each stop and
    /// at least every millisecond.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub fn serve_until(
        &mut self,
        guard: &dyn Fn(u64) -> Option<u64>,
        at_most: Duration,
        until: &mut dyn FnMut(&Self) -> bool,
    ) -> Result<bool, TargetError> {
        let _ = (guard, at_most, until);
        todo!()
    }
    /// What happened since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        todo!()
    }
    /// Threads of the process now seized.
    #[must_use]
    pub fn threads(&self) -> Vec<u32> {
        todo!()
    }
    /// Lets a held child run on; `keep` leaves it seized, else it is detached.
    ///
    /// # Errors
    /// When the child is not held or is gone.
    pub fn release(&mut self, child: u32, keep: bool) -> Result<(), TargetError> {
        let _ = (child, keep);
        todo!()
    }
    /// The SIGTRAP action to put back, should the kernel reset it because a guard was hit with SIGTRAP blocked.
    pub fn set_trap_handler(&mut self, handler: Option<Handler>) {
        let _ = handler;
        todo!()
    }
    /// Stops one fit thread for remote calls.
    ///
    /// # Errors
    /// When no thread is fit, with the reason.
    pub fn remote(&mut self, options: &RemoteOptions) -> Result<RemoteCaller<'_, 'p>, TargetError> {
        let _ = options;
        todo!()
    }
    /// Stops every thread.
    ///
    /// # Errors
    /// When a thread does not stop; all are released then.
    pub fn stop_all(&mut self, guard: &dyn Fn(u64) -> Option<u64>) -> Result<StoppedAll<'_, 'p>, TargetError> {
        let _ = guard;
        todo!()
    }
    /// Sums so far.
    #[must_use]
    pub fn report(&self) -> BatchReport {
        todo!()
    }
}
