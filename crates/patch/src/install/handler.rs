//! The handler of guard traps in another process: the actions that it replaces, and puts back.
//!
//! In: a handler's code, mapped; what makes calls in the process. Out: signal actions set, each old one journaled
//! before it is replaced (SAFE-3). Invariants: PATCH-13.
//! Does not: make the handler's code (`native::handler`), or map it.

use trapline_record::control::at;
use trapline_record::view::View;
use trapline_tracee::{Handler, TargetError};

use crate::install::caller::Caller;
use crate::signals::{SERVED, TRAPS, bit};

const SA_SIGINFO: u64 = 4;
const SA_RESTORER: u64 = 0x0400_0000;
const SA_ONSTACK: u64 = 0x0800_0000;
const SA_NODEFER: u64 = 0x4000_0000;
const SA_RESETHAND: u64 = 0x8000_0000;

/// The handler that the first segment holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Installed {
    pub(crate) entry: u64,
    restorer: u64,
    /// The actions that we set, in the order of [`SERVED`].
    actions: [Option<Handler>; SERVED.len()],
}

impl Installed {
    /// The handler with its code at `entry`, before an action is set.
    #[allow(dead_code, reason = "where no patch needs a trap, there is no handler")]
    pub(crate) const fn new(entry: u64, restorer: u64) -> Self {
        Self { entry, restorer, actions: [None; SERVED.len()] }
    }
    /// The action of SIGTRAP that we set.
    pub(crate) const fn trap(&self) -> Option<Handler> {
        self.actions[0]
    }
    /// The action of SIGILL that we set.
    pub(crate) const fn illegal(&self) -> Option<Handler> {
        self.actions[1]
    }
    /// The actions of SIGSEGV and SIGBUS that we set.
    pub(crate) const fn faults(&self) -> [Option<Handler>; 2] {
        [self.actions[2], self.actions[3]]
    }
    /// Replaces the wanted actions, unless they are replaced already. `view`: the words of the first segment.
    pub(crate) fn take(
        &mut self,
        caller: &mut impl Caller,
        view: View<'_>,
        wanted: [bool; SERVED.len()],
    ) -> Result<(), TargetError> {
        view.set(at::HANDLER, self.entry);
        for (nth, served) in SERVED.iter().enumerate().filter(|(nth, _)| wanted[*nth]) {
            if self.actions[nth].is_some() {
                continue;
            }
            let old = caller.sigaction(served.signal, None)?;
            let journal = |old: &Handler| {
                for (n, word) in [old.handler, old.flags, old.restorer, old.mask].into_iter().enumerate() {
                    view.set(served.old + n as u64 * 8, word);
                }
            };
            journal(&old);
            view.set(at::HANDLES, view.get(at::HANDLES) | served.bit);
            let ours = self.action(served.signal, &old);
            let replaced = caller.sigaction(served.signal, Some(&ours))?;
            if replaced != old {
                // Another thread changed it between the two calls.
                journal(&replaced);
            }
            self.actions[nth] = Some(ours);
        }
        Ok(())
    }
    /// The action that we set over an old one. If the program has no handler of its own, no signal interrupts
    /// ours. If it has one, what the program requested for it (stack, mask, restarts) holds for ours, which
    /// passes traps on to it. One thing differs: traps stay unblocked (PATCH-13).
    fn action(&self, signal: i32, old: &Handler) -> Handler {
        let (more, mask) = if old.handler <= 1 {
            (SA_ONSTACK, u64::MAX)
        } else if TRAPS & bit(signal) != 0 {
            (SA_NODEFER, old.mask & !TRAPS)
        } else {
            (0, old.mask)
        };
        let kept = old.flags & !SA_RESETHAND;
        Handler {
            handler: self.entry,
            flags: kept | SA_SIGINFO | SA_RESTORER | more,
            restorer: self.restorer,
            mask,
        }
    }
    /// Puts back the actions, from the journal in the words of the segment that brought the handler. Returns
    /// whether all of them are back.
    pub(crate) fn put_back(&self, caller: &mut impl Caller, view: View<'_>) -> bool {
        let mut all = true;
        for (served, ours) in SERVED.iter().zip(self.actions) {
            let word = |n: u64| view.get(served.old + n * 8);
            let old = Handler { handler: word(0), flags: word(1), restorer: word(2), mask: word(3) };
            if ours.is_some() {
                // This is on a path that reports another error already.
                all &= caller.sigaction(served.signal, Some(&old)).is_ok();
            }
        }
        all
    }
    /// Whether only we catch faults: our handler is set, and the program had none. `view`: the words of the
    /// first segment.
    pub(crate) fn catches_faults_alone(
        &self,
        caller: &mut impl Caller,
        view: View<'_>,
    ) -> Result<bool, TargetError> {
        for (served, ours) in SERVED.iter().zip(self.actions).skip(2) {
            let present = caller.sigaction(served.signal, None)?.handler;
            let old = view.get(served.old);
            if present > 1 && (ours.is_none() || present != self.entry || old > 1) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
